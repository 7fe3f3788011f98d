"""Encoded spans -> shards of a corpus and its holdout, in a folder that survives interruptions."""
