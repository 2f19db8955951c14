"""Sub-layers and whole models on PyTorch alone, which any wiring connects."""
