"""What runs several programs in a row."""
