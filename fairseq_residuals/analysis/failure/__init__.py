"""Why a run diverged."""
