"""Changes that fairseq 0.12.2 needs in order to run on current Python, PyTorch, NumPy, hydra and sacreBLEU."""
