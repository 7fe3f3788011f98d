"""Figures: which series they show, and how they are drawn."""
