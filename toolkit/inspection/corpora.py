"""Human-readable views of a corpus: statistics, document lengths, decoded rows; readable in a plain log too."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenization import Tokenizer, load
from toolkit.core.console import facts
from toolkit.core.errors import CorpusError, SettingsError
from toolkit.core.settings import validated
from toolkit.core.text import counted, printable
from toolkit.data import Corpus, CorpusManifest, DataSettings, Rows
from toolkit.run.toml_files import apply_override

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_BAR_WIDTH = 40
_MOST_CHARACTERS = 400
_MOST_SOURCES = 5
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue")
MOST_COUNTED = 1 << 16
"""Each length below this has its own count, so that percentiles are exact except for giant documents."""

_CHUNK = 1 << 20


@dataclass(frozen=True)
class DocumentLengths:
    """Lengths of the documents of a corpus, in tokens.

    `counts[n]` is the number of documents of n tokens; its last entry counts all of 65,536 tokens or more. `powers[k]`
    is the number of documents of 2^(k-1) to 2^k - 1 tokens.
    """

    shortest: int
    longest: int
    counts: npt.NDArray[np.int64]
    powers: npt.NDArray[np.int64]

    def percentile(self, percent: float) -> int:
        """Smallest length that `percent` % of the documents do not exceed, capped at 65,536."""
        ranks = np.cumsum(self.counts)
        return int(np.searchsorted(ranks, np.ceil(percent / 100 * ranks[-1])))


def measure_lengths(corpus: Corpus) -> DocumentLengths:
    """Measure document lengths from the indices of all shards, in bounded memory."""
    shortest, longest = 1 << 62, 0
    counts, powers = np.zeros(MOST_COUNTED + 1, np.int64), np.zeros(33, np.int64)
    for shard in corpus.shards:
        for start in range(0, shard.num_documents, _CHUNK):
            lengths = shard.lengths[start : start + _CHUNK]
            shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
            counts += np.bincount(np.minimum(lengths, MOST_COUNTED), minlength=counts.size)
            powers += np.bincount(np.frexp(lengths)[1], minlength=powers.size)
    return DocumentLengths(min(shortest, longest), longest, counts, powers)


def load_tokenizer(corpus: Corpus) -> Tokenizer:
    """Load the tokenizer in the corpus folder; CorpusError if the corpus was made with another one."""
    tokenizer = load(corpus.tokenizer_folder)
    if tokenizer.fingerprint != corpus.fingerprint:
        raise CorpusError(
            f"{corpus.tokenizer_folder} is not the tokenizer that {corpus.path} was made with: their fingerprints are "
            f"{tokenizer.fingerprint[:12]} and {corpus.fingerprint[:12]}. Copy the corpus again."
        )
    return tokenizer


@dataclass(frozen=True)
class Segment:
    """A segment of a row; number 0 is padding."""

    number: int
    num_tokens: int
    text: str


def read_segments(rows: Rows, tokenizer: Tokenizer, *, row: int) -> list[Segment]:
    """Decoded segments of a row, in order, as in the first epoch."""
    read = rows.read(np.array([row]), np.array([0]))
    tokens_S, segments_S = read.tokens_BS[0], read.segments_BS[0]
    bounds = [0, *(np.flatnonzero(np.diff(segments_S)) + 1).tolist(), segments_S.size]
    return [
        Segment(int(segments_S[start]), stop - start, tokenizer.decode(tokens_S[start:stop]))
        for start, stop in itertools.pairwise(bounds)
    ]


def row_settings(place: str, overrides: Sequence[str]) -> DataSettings:
    """Settings for making rows: the defaults, with `data.key=value` overrides."""
    raw: dict[str, Any] = {"data": {"train": place}}
    for override in overrides:
        apply_override(raw, override)
        if set(raw) != {"data"} or not isinstance(raw["data"], dict):
            raise SettingsError(
                f"--set {override}: only data.* can be set here, for example --set data.windows=blocks."
            )
    if raw["data"].get("train") != place:
        raise SettingsError(
            f"--set data.train: this shows the corpus {place}. Inspect the corpora of a blend one by one."
        )
    return validated(DataSettings, raw["data"], origin="--set", group="data")


def statistics(corpus: Corpus, lengths: DocumentLengths) -> "Table":
    """Table of the facts in corpus.json and the distribution of document lengths."""
    manifest, tokenizer = corpus.manifest, corpus.manifest.tokenizer
    table = facts()
    table.add_row("documents", f"{manifest.documents:,} in {counted(len(manifest.shards), 'shard')}")
    table.add_row("tokens", f"{manifest.tokens:,} ({manifest.dtype})")
    for fact, value in (manifest.text.facts(manifest.tokens) if manifest.text else {}).items():
        table.add_row(fact, printable(value))
    table.add_row("tokens a document", _spread(corpus, lengths))
    table.add_row("vocabulary", f"{tokenizer.vocab_size:,} ids, fingerprint {tokenizer.fingerprint[:12]}")
    named = tokenizer.special_ids.model_dump()
    table.add_row(
        "special ids", ", ".join(f"{role} {token_id}" for role, token_id in named.items() if token_id is not None)
    )
    table.add_row("special text", f"{manifest.special_text_hits:,} strings of special tokens inside the text")
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in manifest.skipped.items())
    table.add_row("skipped rows", skipped or "none")
    for line in _sources(manifest):
        table.add_row("source", printable(line))
    table.add_row("made with", f"toolkit {manifest.toolkit_version}")
    return table


def _sources(manifest: CorpusManifest) -> list[str]:
    """A line for each source, most skipped rows first; only the first few of many."""
    lines = [
        f"{name}: {counted(source.documents, 'document')}, {source.text_bytes:,} bytes of text of {source.num_bytes:,}"
        + "".join(f", {count:,} {reason}" for reason, count in source.skipped.items())
        for name, source in sorted(manifest.sources.items(), key=lambda item: -sum(item[1].skipped.values()))
    ] or list(dict.fromkeys(shard.source for shard in manifest.shards))
    more = len(lines) - _MOST_SOURCES
    return [*lines[:_MOST_SOURCES], f"and {more:,} more"] if more > 0 else lines


def histogram(lengths: DocumentLengths) -> "Table":
    """Number of documents by length, one line for each power of two."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title="Length of documents", title_justify="left")
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("documents", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    filled = lengths.powers.nonzero()[0].tolist()
    most = int(lengths.powers.max())
    for power in range(filled[0], filled[-1] + 1) if filled else ():
        count = int(lengths.powers[power])
        # A line with documents shows at least a sliver.
        bar = "#" * max(round(_BAR_WIDTH * count / most), int(count > 0))
        table.add_row(f"{2**power // 2:,} - {2**power - 1:,}", f"{count:,}", bar)
    return table


def rows_line(rows: Rows, settings: DataSettings) -> str:
    """Line with the number of rows that these settings make."""
    made = f"{rows.num_rows:,} rows of {rows.sequence_length:,} tokens, {rows.fill:.2%} full"
    return f"{made} (data.windows={settings.windows})"


def row_view(number: int, segments: Sequence[Segment]) -> "Text":
    """A decoded row: each segment with its number and, on a terminal, a colour."""
    from rich.text import Text

    num_tokens = sum(segment.num_tokens for segment in segments if segment.number)
    num_pads = sum(segment.num_tokens for segment in segments if not segment.number)
    num_segments = sum(segment.number > 0 for segment in segments)
    title = f"Row {number:,}: {num_tokens:,} tokens in {counted(num_segments, 'segment')}, {num_pads:,} padding"
    text = Text(title, style="bold")
    for segment in segments:
        if segment.number:
            text.append(f"\n  [{segment.number}] {counted(segment.num_tokens, 'token')}: ", style="not bold dim")
            colour = _COLOURS[(segment.number - 1) % len(_COLOURS)]
            text.append(_shown(segment.text), style=f"not bold {colour}")
        else:
            text.append(f"\n  [padding] {segment.num_tokens:,} positions", style="not bold dim")
    return text


def _spread(corpus: Corpus, lengths: DocumentLengths) -> str:
    if not corpus.num_documents:
        return "none"
    percentiles = {percent: lengths.percentile(percent) for percent in (10, 50, 90, 99)}
    middle = ", ".join(f"{percent} % up to {at:,}" for percent, at in percentiles.items() if at < MOST_COUNTED)
    mean = corpus.num_tokens / corpus.num_documents
    return f"{lengths.shortest:,} to {lengths.longest:,}, mean {mean:,.1f}; {middle}"


def _shown(text: str) -> str:
    """Text on one line, without the middle if it is long."""
    text = printable(text)
    half = _MOST_CHARACTERS // 2
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]} [...] {text[-half:]}"
