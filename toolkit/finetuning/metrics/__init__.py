"""Scores of predictions, by the packages and definitions that each field uses."""
