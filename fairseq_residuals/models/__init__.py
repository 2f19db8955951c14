"""The models that fairseq sees, one per task: fairseq's own, rewired."""
