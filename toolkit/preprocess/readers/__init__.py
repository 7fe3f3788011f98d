"""Readers: cut a source into spans of a few megabytes, so that workers read them in parallel and memory stays bounded.

One thread finds the spans, in order, which is cheap; parsing the rows is the expensive part and happens wherever
`Span.read` is called. The end of a span depends on its start alone, so a reader that resumes at the start of a span
finds the same spans as one that started at the beginning.

rows.py                 a row: its text, or why it has none
streams.py              files: opened, decompressed
ranges.py               files elsewhere, read in byte ranges: in object storage, on the hub (hub_file.py)
lines.py                JSON lines and plain text
delimited.py            CSV (csv_records.py, swallowed_rows.py) and TSV
json_array.py           one JSON array
parquet.py              Parquet (parquet_footer.py)
"""

from collections.abc import Iterator

from toolkit.preprocess.readers.delimited import iterate_csv_spans, iterate_tsv_spans
from toolkit.preprocess.readers.json_array import holds_array, iterate_array_spans
from toolkit.preprocess.readers.lines import iterate_line_spans, line_parser
from toolkit.preprocess.readers.parquet import iterate_parquet_spans
from toolkit.preprocess.readers.rows import Reason, Row, Span
from toolkit.preprocess.settings import TxtDocuments
from toolkit.preprocess.sources.source import Format, Source

__all__ = ["Reason", "Row", "Span", "iterate_spans"]


def iterate_spans(source: Source, *, text_field: str, txt_documents: TxtDocuments, start: int = 0) -> Iterator[Span]:
    """The spans of a source, in order: about 4 MB of text each, or one document that is larger.

    Called from one thread. The rows of all spans, in order, are the rows of the source.

    Args:
        text_field: key (JSON) or column (Parquet, CSV, TSV) that holds the text.
        txt_documents: what is one document in a .txt file.
        start: 0, or the `start` of a span of the same file, to resume there.
    """
    if source.format is Format.PARQUET:
        yield from iterate_parquet_spans(source, text_field, start=start)
    elif source.format is Format.CSV:
        yield from iterate_csv_spans(source, text_field, start=start)
    elif source.format is Format.TSV:
        yield from iterate_tsv_spans(source, text_field, start=start)
    elif source.format is Format.JSON and holds_array(source):
        yield from iterate_array_spans(source, text_field, start=start)
    else:
        parse = line_parser(source.format, text_field=text_field, txt_documents=txt_documents)
        yield from iterate_line_spans(source, parse, start=start)
