"""Rows of S tokens with segment ids, made from the documents of a corpus."""
