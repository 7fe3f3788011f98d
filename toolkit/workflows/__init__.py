"""Workflows: programs, run one after the other."""
