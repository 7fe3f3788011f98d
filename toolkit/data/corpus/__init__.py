"""A corpus on disk: shards of tokens, the manifest that lists them, and readers for both."""
