"""Treatment of text."""
