"""Grids and runs as data: scores, labels, curves, and missing cells."""
