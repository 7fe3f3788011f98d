"""Test helpers for packages that add objectives: contracts, tiny models and corpora, ranks on one machine, tolerances.

The helpers of this project's own tests are in `tests/support`.
"""
