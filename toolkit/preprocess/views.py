"""A corpus on the screen: statistics, a histogram of lengths, rows with their segments; readable in a plain log too."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.core.console import facts
from toolkit.core.text import counted
from toolkit.data import Corpus, DataSettings, Rows
from toolkit.preprocess.inspection import MOST_COUNTED, Lengths, Segment

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_BAR_WIDTH = 40
_MOST_CHARACTERS = 400
_MOST_SOURCES = 5
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue")


def statistics(corpus: Corpus, lengths: Lengths) -> "Table":
    """What corpus.json says, and how the lengths of the documents spread."""
    manifest, tokenizer = corpus.manifest, corpus.manifest.tokenizer
    table = facts()
    table.add_row("documents", f"{manifest.documents:,} in {len(manifest.shards):,} shards")
    table.add_row("tokens", f"{manifest.tokens:,} ({manifest.dtype})")
    table.add_row("tokens a document", _spread(corpus, lengths))
    table.add_row("vocabulary", f"{tokenizer.vocab_size:,} ids, fingerprint {tokenizer.fingerprint[:12]}")
    named = tokenizer.special_ids.model_dump()
    table.add_row(
        "special ids", ", ".join(f"{role} {token_id}" for role, token_id in named.items() if token_id is not None)
    )
    table.add_row("special text", f"{manifest.special_text_hits:,} strings of special tokens inside the text")
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in manifest.skipped.items())
    table.add_row("skipped rows", skipped or "none")
    sources = list(dict.fromkeys(shard.source for shard in manifest.shards))
    for source in sources[:_MOST_SOURCES]:
        table.add_row("source", source)
    if len(sources) > _MOST_SOURCES:
        table.add_row("", f"and {len(sources) - _MOST_SOURCES:,} more")
    table.add_row("made with", f"toolkit {manifest.toolkit_version}")
    return table


def histogram(lengths: Lengths) -> "Table":
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
    """How many rows these settings make."""
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
            text.append(_shortened(_visible(segment.text)), style=f"not bold {colour}")
        else:
            text.append(f"\n  [padding] {segment.num_tokens:,} positions", style="not bold dim")
    return text


def _spread(corpus: Corpus, lengths: Lengths) -> str:
    if not corpus.num_documents:
        return "none"
    percentiles = {percent: lengths.percentile(percent) for percent in (10, 50, 90, 99)}
    middle = ", ".join(f"{percent} % up to {at:,}" for percent, at in percentiles.items() if at < MOST_COUNTED)
    mean = corpus.num_tokens / corpus.num_documents
    return f"{lengths.shortest:,} to {lengths.longest:,}, mean {mean:,.1f}; {middle}"


def _visible(text: str) -> str:
    """Text on one line, without characters that move the cursor."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _shortened(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]} [...] {text[-half:]}"
