"""Kernels: what is written once for a device that has a faster way than plain torch, and which of them a run takes."""
