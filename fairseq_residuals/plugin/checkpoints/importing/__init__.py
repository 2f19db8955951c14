"""Checkpoints of the authors' repositories, made this plugin's."""
