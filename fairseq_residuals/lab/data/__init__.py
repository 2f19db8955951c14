"""Preparation of data."""
