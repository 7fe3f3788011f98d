"""Question answering: a span of a context, or none."""
