"""Tables of scores, intervals and paired tests."""
