"""Features that attach to a training run."""
