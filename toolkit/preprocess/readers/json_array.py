"""JSON arrays, read whole: only parsing tells where an element ends."""

import codecs
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import orjson

from toolkit.core.errors import UserError
from toolkit.core.text import quoted
from toolkit.preprocess.readers.rows import Span, row_from_json, without_lone_surrogates
from toolkit.preprocess.readers.streams import open_stream
from toolkit.preprocess.sources.source import Source
from toolkit.tables import load_any_json

_SPAN_BYTES = 4 << 20
_MOST_BYTES = 2 << 30


def holds_array(source: Source) -> bool:
    """True if a file is one array rather than lines, the first of which may itself be an array."""
    with open_stream(source) as stream:
        head = stream.file.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip(b" \t\r\n")
    line, _, rest = head.partition(b"\n")
    with suppress(orjson.JSONDecodeError):
        return isinstance(orjson.loads(line), list) and not rest.strip()
    return head.startswith(b"[")


def iterate_array_spans(source: Source, text_field: str) -> Iterator[Span]:
    """The spans of one JSON array of at most 2 GiB."""
    with open_stream(source) as stream:
        content = stream.file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise UserError(
            f"the source {source.name} is a JSON array of more than 2 GiB, which is not read at once. Write one object "
            f"per line: jq -cn --stream 'fromstream(1|truncate_stream(inputs))' {quoted(source.name)} > NEW.jsonl "
            "(decompressed first, if it is compressed)."
        )
    elements, num_bytes = _parsed(source, content.removeprefix(codecs.BOM_UTF8)), len(content)
    del content
    step = max(1, len(elements) * _SPAN_BYTES // num_bytes)
    for start in range(0, len(elements), step):
        part = elements[start : start + step]
        rows = [without_lone_surrogates(row_from_json(element, text_field)) for element in part]
        yield Span(source.num_bytes * (start + len(part)) // len(elements), partial(list, rows))


def _parsed(source: Source, content: bytes) -> list[object]:
    try:
        # Bytes that are not UTF-8 become lone surrogates, and an integer may have thousands of digits: only their own
        # row is bad.
        return list(load_any_json(content, errors="surrogateescape", parse_int=float))
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at character {error.colno:,} of line {error.lineno:,}"
    except ValueError as error:
        problem = str(error)
    raise UserError(
        f"the JSON array in {source.name} is broken: {problem}. The rows after it cannot be found: repair it."
    )
