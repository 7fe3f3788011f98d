"""Experiments: grids of fine-tuning runs, and reports on them."""
