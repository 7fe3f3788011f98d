"""`python -m toolkit.cli`, where the `toolkit` script is not on the path."""

from toolkit.cli.main import entry

entry()
