"""What each format makes of each wiring, measured on small models."""
