"""Kernels: implementations for devices with a faster way than plain torch, and the choice for a run."""
