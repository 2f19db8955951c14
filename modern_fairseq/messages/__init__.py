"""One sentence for what a user got wrong, where fairseq 0.12.2 shows a traceback or says something else."""
