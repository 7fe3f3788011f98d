"""A grid of fine-tuning runs.

Declaration -> cells -> plan (inputs, hashes, what has finished) -> work for workers -> scores -> choice of rates.
"""
