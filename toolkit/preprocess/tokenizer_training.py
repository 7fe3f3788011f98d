"""Tokenizer training: a vocabulary from the same files and rows as a corpus, in the same order."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import tokenization
from toolkit.core.console import Progress, progress
from toolkit.core.errors import UserError
from toolkit.preprocess.accounts import Account
from toolkit.preprocess.encoding import ahead
from toolkit.preprocess.settings import TokenizerTrainingSettings
from toolkit.preprocess.source_checks import check_sources, spans_of
from toolkit.preprocess.sources import Source, find_sources, no_documents_error

_FILES = {"tokenizer.json", "tokenizer_config.json"}
_NUM_READERS = 2
_SAMPLE_CHARACTERS = 1_000_000


@dataclass
class TokenizerTraining:
    """A trained tokenizer, and what it was trained on.

    Attributes:
        vocabulary_size: number of ids; fewer than requested if there was too little text.
        text_bytes: UTF-8 bytes of the texts.
        skipped: rows without a text, by reason.
        bytes_per_token: measured on the first million characters.
    """

    folder: Path
    vocabulary_size: int = 0
    documents: int = 0
    text_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    bytes_per_token: float = 0.0


def train_tokenizer(sources: Sequence[str], output: Path, *, settings: TokenizerTrainingSettings) -> TokenizerTraining:
    """Train a byte-level BPE on the texts of sources; equal texts give equal files.

    Keeps the counts of all distinct words in memory, not the text. Sources are as for `preprocess`; creates the folder.
    """
    found = find_sources(sources, subset=settings.subset, exclude=settings.exclude or (), output=output)
    files = [file for file in found if not file.is_excluded]
    _prepare(output, overwrite=settings.overwrite)
    result, sample, start = TokenizerTraining(output), list[str](), time.monotonic()
    with progress("Reading", total=sum(file.num_bytes for file in files) / 1e6, unit="MB") as shown:
        texts = _texts(files, settings, result, shown)
        try:
            tokenization.train_bpe(_sampled(texts, sample), vocabulary_size=settings.vocab_size, folder=output)
        except OSError as error:
            raise UserError(
                f"could not write {error.filename or output}: {error.strerror}. Free space, or name another folder "
                "(--output)."
            ) from error
    tokenizer = tokenization.load(output)
    ids, _ = tokenizer.encode_batch(sample)
    result.vocabulary_size = tokenizer.vocabulary_size
    result.bytes_per_token = sum(len(text.encode()) for text in sample) / max(ids.size, 1)
    result.seconds = time.monotonic() - start
    return result


def _prepare(output: Path, *, overwrite: bool) -> None:
    """Create the folder before hours of reading; never mix a tokenizer with other files."""
    try:
        held = {path.name for path in output.iterdir()} if output.exists() else set()
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"could not create the folder {error.filename or output}: {error.strerror}. Name another one (--output)."
        ) from error
    if held - _FILES:
        raise UserError(f"{output} holds other files ({', '.join(sorted(held - _FILES)[:3])}). Give a new folder.")
    if held and not overwrite:
        raise UserError(f"{output} already holds a tokenizer. Give another folder, or --overwrite to replace it.")


def _texts(
    files: Sequence[Source], settings: TokenizerTrainingSettings, result: TokenizerTraining, shown: Progress
) -> Iterator[str]:
    """The texts of all files up to the limit, counted in `result`; UserError if sources lose most of their rows."""
    accounts = [Account() for _ in files]
    num_read = len(files)
    spans = ahead(spans_of(files, settings), lambda item: item[1].read(), num_workers=_NUM_READERS)
    with closing(spans):
        for (number, span), rows in spans:
            texts = [row.text for row in rows if row.reason is None]
            accounts[number].add(len(texts), [item for item in enumerate(rows) if item[1].reason])
            if settings.limit_documents is not None:
                texts = texts[: settings.limit_documents - result.documents]
            result.documents += len(texts)
            result.text_bytes += sum(len(text.encode()) for text in texts)
            yield from texts
            shown.update(span.end_bytes / 1e6, f"{result.documents:,} documents")
            if result.documents == settings.limit_documents:
                num_read = number
                break
    for account in accounts:
        result.skipped.update(account.skipped)
    check_sources(zip(files[:num_read], accounts, strict=False), settings)
    if not result.documents:
        raise no_documents_error(result.skipped)
    shown.say(f"Read {result.documents:,} documents, {result.text_bytes / 1e6:,.1f} MB of text; learning merges.")


def _sampled(texts: Iterator[str], sample: list[str]) -> Iterator[str]:
    """The texts, unchanged; the first million characters are kept in `sample`."""
    missing = _SAMPLE_CHARACTERS
    for text in texts:
        if missing > 0:
            sample.append(text[:missing])
            missing -= len(text)
        yield text
