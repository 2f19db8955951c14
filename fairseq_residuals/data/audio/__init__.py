"""Treatment of sound."""
