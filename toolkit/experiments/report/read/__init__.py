"""Grids and runs as values: scores, labels, curves, and what is missing."""
