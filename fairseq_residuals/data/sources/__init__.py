"""Where published files lie."""
