"""Sources of text: names from the user -> files, local or on the hub, in one fixed order.

source.py   one file to read: its format and compression, by its name
find.py     paths, folders, globs and data sets -> sources
walk.py     folders, globs and links -> paths, each file once
hub.py      data sets on the hub: configurations -> Parquet files of one commit
"""

from toolkit.preprocess.sources.find import find_sources, no_documents_error
from toolkit.preprocess.sources.source import Compression, Format, Source

__all__ = ["Compression", "Format", "Source", "find_sources", "no_documents_error"]
