"""Minimal pairs, zero-shot: which of two sentences a language model finds the likelier one."""
