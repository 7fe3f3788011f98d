"""Spans of sources, and checks: what a source has to yield (one rule for all formats), and what it is if it does not.

A source that yields no document, or has more than half of its rows bad, is an error by itself, whatever its share of
all rows, its name and its place in the order. Readers only say what each row is.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from glob import escape

from toolkit.core.errors import UserError
from toolkit.core.text import counted, quoted
from toolkit.preprocess.accounts import Account
from toolkit.preprocess.readers import Reason, Span, iterate_spans
from toolkit.preprocess.readers.lines import LFS_POINTER
from toolkit.preprocess.readers.streams import open_file, open_stream
from toolkit.preprocess.settings import ReadingSettings
from toolkit.preprocess.sources import Compression, Format, Source

_MOST_NAMED = 10
_HEAD_BYTES, _MOST_PARSED_BYTES = 1 << 16, 1 << 28
_BEGINNINGS = {
    b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"PAR1": ".parquet",
    b"PK\x03\x04": ".zip", b"ARROW1": ".arrow",
}  # fmt: skip
_UNPACK = {Compression.GZIP: "zcat", Compression.ZSTD: "zstdcat", Compression.BZIP2: "bzcat", Compression.XZ: "xzcat"}
_NEW_LINE_ENDS = r"tr '\r' '\n'"
_REMEDIES = {
    Reason.MISSING_FIELD: "Name the field that holds the text with --text-field, or prepare these sources apart.",
    Reason.WRONG_TYPE: "Name a field that holds a string with --text-field.",
    Reason.CANNOT_ENCODE: "Give a tokenizer with an unknown token, or with a token for each byte.",
    Reason.NOT_UTF8: "Save it as UTF-8 (iconv -f ENCODING -t UTF-8).",
}


class SourceError(UserError):
    """Error of a source that cannot be read; it ends the reading of its group."""

    def __init__(self, source: Source, problem: str) -> None:
        super().__init__(problem if source.name in problem else f"the source {source.name}: {problem}")
        self.source = source


def check_sources(
    read: Iterable[tuple[Source, Account]], settings: ReadingSettings, broken: SourceError | None = None
) -> None:
    """Raise a UserError that names the sources that yielded no document or lost more than half of their rows.

    `broken` is the error that ended the reading of the source after them, if any.
    """
    bad = [(source, account) for source, account in read if _is_bad(source, account, settings)]
    if not (bad or broken):
        return
    lines = [str(broken)] if broken else []
    lines += [f"the source {its.name} {_problem(its, account, settings)}" for its, account in bad[:_MOST_NAMED]]
    if len(bad) > _MOST_NAMED:
        lines.append(f"and {len(bad) - _MOST_NAMED:,} more sources that are no better.")
    first = broken.source if broken else bad[0][0]
    lines.append(f"To go on without such a source, leave it out: --exclude {quoted(escape(first.name))}")
    raise UserError("\n".join(lines)) from broken


@contextmanager
def errors_explained(source: Source, settings: ReadingSettings) -> Iterator[None]:
    """Name the source in errors; explain them better than the reader if the file is not what its name says."""
    try:
        yield
    except SourceError:
        raise
    except UserError as error:
        kind = _other_kind(source, settings)
        raise SourceError(source, f"could not read the source {source.name}: {kind}" if kind else str(error)) from error


def spans_of(files: Sequence[Source], settings: ReadingSettings) -> Iterator[tuple[int, Span]]:
    """The spans of sources, each with the number of its source; their `end_bytes` count from the first source on."""
    before = 0
    for number, file in enumerate(files):
        named = partial(errors_explained, file, settings)
        with named():
            for span in iterate_spans(file, settings):
                yield number, Span(before + span.end_bytes, named()(span.read))
        before += file.num_bytes


def _is_bad(source: Source, account: Account, settings: ReadingSettings) -> bool:
    if account.num_texts or account.num_bad:
        return not account.num_texts or 2 * account.num_bad > account.rows
    # The whole file is one document, and an empty file is no loss.
    is_document = source.format is Format.TEXT and settings.txt_documents == "file"
    if is_document or account.rows:
        return not is_document
    # Neither is a table that says that it has no rows.
    has_content = any(head.strip() for ending, head in _heads(source) if ending == source.format)
    return not has_content or _other_kind(source, settings) is not None


def _problem(source: Source, account: Account, settings: ReadingSettings) -> str:
    """What is wrong with a bad source, by its counts, and what to do."""
    lost, looks = "gives no document", _other_kind(source, settings)
    if account.num_texts:
        lost = f"has {account.num_bad:,} bad of {counted(account.rows, 'row')}"
    if not account.num_bad:
        return f"{lost}: it is empty. {looks or 'Remove it.'}"
    looks = looks or _other_layout(source, settings)
    return f"{lost}: {account.reasons()}. {looks or remedy(account.skipped)}"


def remedy(skipped: Mapping[str, int]) -> str:
    """What to do about the bad rows among those that `skipped` counts by reason."""
    bad = {reason: count for reason, count in skipped.items() if Reason(reason).is_bad}
    return _REMEDIES.get(Reason(max(bad, key=lambda reason: bad[reason])), "Repair it.")


def _heads(source: Source) -> Iterator[tuple[str, bytes]]:
    """Beginning of the file and of its decompressed content, as far as readable, each with its file extension."""
    with suppress(UserError):
        if source.compression is not None:
            with open_file(source, (0, min(source.num_bytes, _HEAD_BYTES))) as file:
                yield source.compression, file.read(_HEAD_BYTES)
        with open_stream(source) as stream:
            yield source.format, stream.file.read(_HEAD_BYTES)


def _other_kind(source: Source, settings: ReadingSettings) -> str | None:
    """What a file is, if it is not of the kind that its name says; and what to do."""
    for ending, head in _heads(source):
        own = next((known for mark, known in _BEGINNINGS.items() if head.startswith(mark)), None)
        if head.startswith(LFS_POINTER):
            return "It is a Git LFS pointer, not the file itself. Fetch that with `git lfs pull`."
        is_text = ending not in _BEGINNINGS.values()
        has_zeros = 3 * head[:64].count(0) > len(head[:64])
        if is_text and (head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or has_zeros):
            return "It is UTF-16. Save it as UTF-8 (iconv -f UTF-16 -t UTF-8)."
        if ending != Format.TEXT and re.match(rb"\s*(<!doctype html|<html|<\?xml)", head, re.IGNORECASE):
            return "It is a web page, perhaps of an error. Download the file again."
        if own is not None and own != ending:
            return f"It is a {own} file by its first bytes. Give it that ending, or unpack it."
        if ending in _UNPACK and own is None and head.isascii() and b"\n" in head:
            return f"It is not compressed. Take {ending} from its name."
        if ending in (Format.JSON, Format.JSON_LINES, Format.CSV, Format.TSV) and b"\r" in head and b"\n" not in head:
            return rf"Its lines end with \r alone. Replace that: {_command(source, _NEW_LINE_ENDS)}"
        if ending in (Format.CSV, Format.TSV) and (remedy := _other_delimiter(ending, head, settings)):
            return remedy
    return None


def _other_delimiter(ending: str, head: bytes, settings: ReadingSettings) -> str | None:
    line = head.removeprefix(codecs.BOM_UTF8).partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
    own = settings.delimiter if ending == Format.CSV else "\t"
    if settings.text_field in [name.strip('" ') for name in line.split(own)]:
        return None
    for delimiter, shown in {";": "';'", "\t": r"$'\t'", "|": "'|'", ",": ","}.items():
        if settings.text_field in [name.strip('" ') for name in line.split(delimiter)]:
            options = f"--delimiter {shown}" if ending == Format.CSV else f"the ending .csv, with --delimiter {shown}"
            return f"Its columns are separated by {delimiter!r}: {options}."
    return None


def _other_layout(source: Source, settings: ReadingSettings) -> str | None:
    """How the rows of a JSON file are laid out, if not as one object per line; and what to do."""
    if source.format not in (Format.JSON, Format.JSON_LINES):
        return None
    with open_stream(source) as stream:
        text = stream.file.read(_MOST_PARSED_BYTES).decode("utf-8-sig", "replace").lstrip()
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    line, field, is_array = text.partition("\n")[0], json.dumps(settings.text_field), isinstance(value, list)
    if isinstance(value[0] if is_array and value else value, str):
        command = f"jq -c '{'.[] | ' if is_array else ''}{{{field}: .}}'"
        return f"Its rows are strings, not objects. Write objects: {_command(source, command)}"
    lists = {
        key: rows
        for key, rows in (value.items() if isinstance(value, dict) else ())
        if isinstance(rows, list) and rows and (key == settings.text_field or isinstance(rows[0], dict))
    }
    if not isinstance(value, dict) or (len(line) == end and (text[end:].strip() or not lists)):
        return None  # an array, or one object per line
    if text[end:].strip() or not lists:
        return f"Its objects are not one per line. Rewrite it: {_command(source, 'jq -c .')}"
    if settings.text_field in lists:
        command = f"jq -c '.[{field}][] | {{{field}: .}}'"
        return f"It holds columns, not rows. Write rows: {_command(source, command)}"
    key = json.dumps(max(lists, key=lambda key: len(lists[key])))
    command = f"jq -c '.[{key}][]'"
    return f"It is one object, with the rows under {key}. Write them one in a line: {_command(source, command)}"


def _command(source: Source, command: str) -> str:
    """The command with the file's text as input."""
    if source.compression is None:
        return f"{command} < {quoted(source.name)} > NEW"
    return f"{_UNPACK[source.compression]} {quoted(source.name)} | {command} > NEW"
