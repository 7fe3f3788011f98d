"""One grid of fine-tuning runs: what it declares, its folder, and what it chooses."""
