"""A grid of fine-tuning runs.

Declaration -> cells -> plan (inputs, hashes, finished cells) -> jobs for workers -> scores -> choice of rates.
"""
