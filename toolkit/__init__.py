"""Pretrain text encoders with a schedule of objectives.

Importing this package loads nothing heavy: torch and deepspeed are imported by the parts that use them.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
