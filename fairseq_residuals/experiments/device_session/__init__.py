"""What is to be done on a machine with a GPU, in order of worth: ``scripts/gpu.sh``."""
