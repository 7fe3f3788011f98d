"""Helpers for tests, imported by tests alone: run_distributed, tiny models and corpora, contracts, tolerances."""
