"""Functions and constants that every package of the lab may use."""
