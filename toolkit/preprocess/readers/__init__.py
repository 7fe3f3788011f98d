"""Readers: cut a source into spans of a few megabytes, so that workers read them in parallel and memory stays bounded.

One thread finds the spans, in order, which is cheap; parsing the rows is the expensive part and happens wherever
`Span.read` is called. A reader returns rows, and why a row has no text; it does not judge whether a source is usable.

rows.py                 a row: its text, or why it has none
streams.py              files: opened, decompressed
ranges.py               remote files, read in byte ranges: in object storage, on the hub (hub_file.py)
lines.py                JSON lines and plain text
delimited.py            CSV and TSV
json_array.py           one JSON array
parquet.py              Parquet
"""

from collections.abc import Iterator

from toolkit.preprocess.readers.delimited import iterate_csv_spans, iterate_tsv_spans
from toolkit.preprocess.readers.json_array import holds_array, iterate_array_spans
from toolkit.preprocess.readers.lines import iterate_line_spans, line_parser
from toolkit.preprocess.readers.parquet import iterate_parquet_spans
from toolkit.preprocess.readers.rows import Reason, Row, Span
from toolkit.preprocess.settings import ReadingSettings
from toolkit.preprocess.sources.source import Format, Source

__all__ = ["Reason", "Row", "Span", "iterate_spans"]


def iterate_spans(source: Source, settings: ReadingSettings) -> Iterator[Span]:
    """The spans of a source, in order: about 4 MB of text each, or one larger document.

    Called from one thread. The rows of all spans, in order, are the rows of the source.
    """
    if source.format is Format.PARQUET:
        return iterate_parquet_spans(source, settings.text_field)
    if source.format is Format.CSV:
        return iterate_csv_spans(source, settings.text_field, delimiter=settings.delimiter)
    if source.format is Format.TSV:
        return iterate_tsv_spans(source, settings.text_field)
    if source.format in (Format.JSON, Format.JSON_LINES) and holds_array(source):
        return iterate_array_spans(source, settings.text_field)
    parse = line_parser(source.format, text_field=settings.text_field, txt_documents=settings.txt_documents)
    return iterate_line_spans(source, parse)
