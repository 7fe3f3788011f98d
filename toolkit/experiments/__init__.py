"""Experiments: grids of fine-tuning runs."""
