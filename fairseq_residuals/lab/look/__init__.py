"""Looks into models: hooks that watch them run, and the pictures and tables made of what they see."""
