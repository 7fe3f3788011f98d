"""Experiments: families of pretraining runs, and grids of fine-tuning runs."""
