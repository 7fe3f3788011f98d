"""Summary of `toolkit preprocess`: the numbers, and the table and notes printed at the end."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenization import MaskOrigin, Tokenizer
from toolkit.core.console import facts
from toolkit.core.text import ending, printable, quoted, set_option
from toolkit.data import CorpusManifest, Rows
from toolkit.preprocess.accounts import Counts, Tally
from toolkit.preprocess.tokenizer_checks import end_notes, mask_notes

if TYPE_CHECKING:
    from rich.table import Table


_LONG_TOKENS = 250_000


@dataclass(frozen=True)
class PreprocessResult:
    """Result and speed of `preprocess`.

    Attributes:
        holdout: manifest of the holdout, which may be empty; None without `--holdout`.
        why_reference: why the tokenizer's own backend made the ids; empty if the fast one did.
        tally: counts over all rows, including those of an earlier, interrupted run.
        rows: the packed rows; None without a sequence length.
        left_out: how many tokens are in no row and why; None if at most 1 %.
        start_seconds: seconds until this run encoded the first text for the corpus.
        seconds: seconds it then took to read, encode and write.
        done: counts of this run's work in that time.
        num_kept_shards: finished shards kept from an interrupted run.
    """

    manifest: CorpusManifest
    holdout: CorpusManifest | None
    tokenizer: Tokenizer
    why_reference: str
    tally: Tally
    rows: Rows | None
    left_out: str | None
    start_seconds: float
    seconds: float
    done: Counts
    num_kept_shards: int


def summary_table(result: PreprocessResult) -> "Table":
    """The final summary of `toolkit preprocess`."""
    manifest, tally, table = result.manifest, result.tally, facts()
    table.add_row("documents", f"{manifest.documents:,}")
    mean = manifest.tokens / max(1, manifest.documents)
    table.add_row("tokens", f"{manifest.tokens:,} ({manifest.dtype}), {mean:,.0f} per document")
    assert manifest.text is not None
    for fact, value in manifest.text.facts(manifest.tokens).items():
        table.add_row(fact, printable(value))
    if result.holdout is not None:
        table.add_row("held out", f"{result.holdout.documents:,} documents, {result.holdout.tokens:,} tokens")
    kept = f", {result.num_kept_shards:,} kept from an interrupted run" if result.num_kept_shards else ""
    table.add_row("shards", f"{len(manifest.shards):,}{kept}")
    table.add_row(
        "vocabulary", f"{manifest.tokenizer.vocab_size:,} ids, fingerprint {manifest.tokenizer.fingerprint[:12]}"
    )
    why = result.why_reference
    fast = "fast, equal to the tokenizer's own on the vocabulary and on samples of the text"
    table.add_row("tokenizer backend", f"the tokenizer's own: {why}" if why else fast)
    table.add_row("end of document", _end(result.tokenizer))
    mask = result.tokenizer.mask
    origin = "" if mask.origin is MaskOrigin.CHOSEN else f", {mask.origin}"
    table.add_row("mask token", f"{mask.text} (id {mask.id}){origin}")
    if result.rows is not None:
        table.add_row(
            "packed rows",
            f"{result.rows.num_rows:,} of {result.rows.sequence_length:,} tokens, {result.rows.fill:.2%} full",
        )
    for reason, count in manifest.skipped.items():
        table.add_row("skipped", f"{count:,} {reason}")
    for line in tally.bad_sources():
        table.add_row("bad rows", line)
    took = f"in {result.seconds:,.1f} s, after {result.start_seconds:,.1f} s of start"
    table.add_row("speed", f"{result.done.rates(result.seconds)} {took}")
    return table


def notes(result: PreprocessResult) -> list[str]:
    """Notes for the user, one or two sentences each."""
    manifest, found = result.manifest, []
    if result.holdout is not None and not result.holdout.documents:
        found.append("No document fell into the holdout: the text is short for that share. Hold out more.")
    found += [*end_notes(result.tokenizer), *mask_notes(result.tokenizer)]
    if result.left_out is not None:
        found.append(result.left_out)
    if (mean := manifest.tokens / max(1, manifest.documents)) > _LONG_TOKENS:
        found.append(
            f"Documents have {mean:,.0f} tokens on average. A .txt file is one document, unless --txt-documents "
            "paragraph or line divides it."
        )
    assert manifest.text is not None
    if manifest.text.losses(manifest.tokens, most=0.01):
        found.append(
            "More than 1 % of the text is lost: a model sees nothing of it. Take a tokenizer that can write it."
        )
    if manifest.special_text_hits:
        parsed = result.tokenizer.rules.parse_special_text
        how = "read as these tokens (--special-text literal reads plain text)" if parsed else "read as plain text"
        found.append(f"Strings of special tokens inside the text: {manifest.special_text_hits:,}, {how}.")
    return found


def _end(tokenizer: Tokenizer) -> str:
    token = f"{tokenizer.eod_text} (id {tokenizer.eod_id})"
    if tokenizer.ends_texts:
        again = "appended once more (--eod)" if tokenizer.appended_ids.size else "not appended again"
        return f"{token}, which the tokenizer itself puts after every text; {again}"
    return token if tokenizer.rules.add_eod else "none (--no-eod)"


def corpus_ending(place: str, holdout: str | None = None) -> str:
    """Last lines of a command that made a corpus and its holdout, if any, in a folder or at a URL."""
    data = {"train": place, "validation": holdout}
    settings = " ".join(set_option(f"data.{key}", path) for key, path in data.items() if path)
    return ending(f"wrote {place}", f"toolkit inspect {quoted(place)}", f"toolkit train RUN.toml {settings}")
