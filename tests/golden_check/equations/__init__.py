"""Evaluate the equations that a variant prints; docs/EQUATIONS.md describes how they are written."""
