"""The ground: errors, the words all packages share, settings base, console. Knows nothing else of ours."""
