"""Which row comes at which sample position of a run, and the digest of the rows that came."""
