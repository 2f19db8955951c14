"""What attaches to a training run."""
