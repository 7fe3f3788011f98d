"""Sequence classification: a class, a number or a set of labels for a text or a pair of texts."""
