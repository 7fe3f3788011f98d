"""The command line. Commands live one to a file and are imported when called, so that --help answers at once."""

from toolkit.cli.main import entry, main

__all__ = ["entry", "main"]
