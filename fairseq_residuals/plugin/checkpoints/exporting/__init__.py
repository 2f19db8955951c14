"""Checkpoints of this plugin, made fairseq's own."""
