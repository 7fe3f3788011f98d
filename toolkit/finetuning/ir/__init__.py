"""Retrieval: documents that answer a query."""
