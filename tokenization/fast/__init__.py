"""Fast batch encoding with gigatoken, checked against the reference."""
