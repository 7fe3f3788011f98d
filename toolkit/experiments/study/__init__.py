"""Families of pretraining runs from one file, in which every common prefix is trained once."""
