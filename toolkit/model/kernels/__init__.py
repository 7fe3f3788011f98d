"""What is computed by a kernel of its own."""
