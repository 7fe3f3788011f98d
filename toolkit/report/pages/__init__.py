"""The page, and scores for model cards and MTEB."""
