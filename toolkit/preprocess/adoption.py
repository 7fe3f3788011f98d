"""Adopt pairs of .bin and .idx that Megatron-LM wrote, where they are: a corpus folder that names them.

Every pair is read through once, by several threads: its hashes go into corpus.json; ids that the tokenizer does not
have, types that are not read, and pairs of different types are refused. Nothing is copied and no pair is changed.
"""

import glob
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tokenization
from toolkit.core.errors import CorpusError, UserError
from toolkit.core.files import PARTIAL_FILES, cache_folder, hash_file
from toolkit.core.text import counted
from toolkit.data import MANIFEST_NAME, CorpusManifest, Shard, ShardEntry
from toolkit.data.corpus.files import OnRead, read_through
from toolkit.data.corpus.manifest import read_damaged_manifest
from toolkit.data.corpus.shards import file_names
from toolkit.preprocess.sources.walk import Repeats, each_once, matches, report_repeats
from toolkit.preprocess.writer.folder import TOKENIZER_FOLDER, complete_corpus, locked, unexpected_names

_ENDINGS = (".bin", ".idx")
_PIECE_BYTES = 1 << 22
_DOCUMENTS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class AdoptedShard:
    """What corpus.json will say of a pair that was read through, and its counts for an `Adoption`."""

    entry: ShardEntry
    num_ended: int
    num_without_end: int


@dataclass(frozen=True)
class Adoption:
    """What was taken over.

    Attributes:
        manifest: what corpus.json says.
        tokenizer: the tokenizer, with its mask token decided.
        num_ended: documents that are not empty.
        num_without_end: those of them whose last token is not the tokenizer's end-of-document token.
    """

    manifest: CorpusManifest
    tokenizer: tokenization.Tokenizer
    num_ended: int
    num_without_end: int

    def __str__(self) -> str:
        manifest, mask, end = self.manifest, self.tokenizer.mask, self.tokenizer.eod_text
        lines = [
            f"{counted(len(manifest.shards), 'pair')} adopted, nothing copied: {manifest.documents:,} documents, "
            f"{manifest.tokens:,} tokens ({manifest.dtype}).",
            f"The mask token is {mask.text} (id {mask.id}).",
        ]
        if self.num_without_end:
            lines.append(
                f"{self.num_without_end:,} of {self.num_ended:,} documents do not end with {end} "
                f"(id {self.tokenizer.eod_id}), the tokenizer's end-of-document token: they were made without "
                "--append-eod, or with another tokenizer."
            )
        elif end is None:
            lines.append("No token is named that ends a document, so their ends were not looked at (see --eod).")
        return "\n".join(lines)


def adopt(
    named: Sequence[str],
    output: Path,
    *,
    tokenizer: str,
    eod: str | None = None,
    mask_token: str = "auto",
    overwrite: bool = False,
) -> Adoption:
    """Make a corpus folder of pairs that stay where they are; corpus.json names them by their absolute paths.

    Args:
        named: pairs, with or without `.bin` or `.idx`, and globs.
        output: the corpus folder; made if it is missing.
        tokenizer: the one that the pairs were made with, as `tokenization.load` takes it.
        eod: token that ends a document; by default the tokenizer's own.
        mask_token: as for `tokenization.load`.
        overwrite: an adopted corpus in the folder may be replaced.

    Raises:
        UserError: a pair or the folder cannot be used.
        TokenizationError: the tokenizer cannot be used.
    """
    prefixes = _find_shards(named)
    loaded = tokenization.load(tokenizer, mask_token=mask_token, eod=eod, cache_folder=cache_folder())
    shards = _open(prefixes)
    with locked(output):
        try:
            _check_output(output, prefixes, loaded, overwrite=overwrite)
            pairs = _examine(shards, loaded)
            _clear(output)
            num_ended = sum(pair.num_ended for pair in pairs)
            loaded.rules = replace(loaded.rules, add_eod=num_ended > 0)
            manifest = complete_corpus(
                output,
                loaded,
                shards=[pair.entry for pair in pairs],
                dtype=shards[0].dtype.name,
                special_text_hits=0,
                skipped={},
            )
            return Adoption(
                manifest=manifest,
                tokenizer=loaded,
                num_ended=num_ended,
                num_without_end=sum(pair.num_without_end for pair in pairs),
            )
        except OSError as error:
            raise UserError(
                f"{error.filename or output} cannot be used: {error.strerror}. Name another folder."
            ) from error


def _open(prefixes: Sequence[Path]) -> list[Shard]:
    shards = [Shard(prefix) for prefix in prefixes]
    for shard in shards[1:]:
        if shard.dtype != shards[0].dtype:
            raise CorpusError(
                f"{shards[0].prefix} holds {shards[0].dtype} tokens, and {shard.prefix} {shard.dtype}: a corpus has "
                "one type. Adopt them into two folders, and train on a blend of both."
            )
    return shards


def _check_output(
    output: Path, prefixes: Sequence[Path], tokenizer: tokenization.Tokenizer, *, overwrite: bool
) -> None:
    """Refuse a folder in which something could be lost."""
    inside = [prefix for prefix in prefixes if prefix.resolve().is_relative_to(output.resolve())]
    if inside:
        raise UserError(
            f"the pair {inside[0]} lies in the output folder {output}, whose files belong to the corpus and may be "
            "replaced. Name another folder: nothing is copied into it."
        )
    if not (output / MANIFEST_NAME).exists():
        others = unexpected_names(output)
        # An adoption that was killed before it wrote corpus.json leaves its tokenizer, and the same one replaces it.
        if others and not (overwrite and others == TOKENIZER_FOLDER and _holds(output / TOKENIZER_FOLDER, tokenizer)):
            raise UserError(
                f"the output folder {output} is not empty and holds no corpus ({others}). Name another folder."
            )
        return
    if not overwrite:
        raise UserError(f"{output} holds a corpus. Name another folder, or replace it with --overwrite.")
    found = read_damaged_manifest(output)
    if found is None or not all(os.path.isabs(name) for name in found.table.names):
        raise UserError(
            f"{output} holds a corpus with shards of its own (or one that cannot be read), and they would stay behind. "
            "Name another folder, or delete it."
        )


def _holds(folder: Path, tokenizer: tokenization.Tokenizer) -> bool:
    """Whether a folder has this tokenizer."""
    try:
        return tokenization.load(str(folder)).fingerprint == tokenizer.fingerprint
    except tokenization.TokenizationError:
        return False


def _examine(shards: Sequence[Shard], tokenizer: tokenization.Tokenizer) -> list[AdoptedShard]:
    """Read all pairs through; the first error ends it."""
    readers = [
        partial(examine_shard, shard, vocabulary_size=tokenizer.encoded_vocabulary_size, eod_id=tokenizer.eod_id)
        for shard in shards
    ]
    num_bytes = sum(path.stat().st_size for shard in shards for path in file_names(shard.prefix))
    return read_through("Reading", readers, num_bytes=num_bytes)


def _clear(output: Path) -> None:
    """Remove what an earlier adoption wrote; corpus.json goes first."""
    (output / MANIFEST_NAME).unlink(missing_ok=True)
    for summary in output.glob("plans-S[0-9]*"):
        summary.unlink()
    for folder in (*output.glob(TOKENIZER_FOLDER), *output.glob(PARTIAL_FILES)):
        shutil.rmtree(folder)


def _find_shards(named: Sequence[str]) -> list[Path]:
    """The pairs that were named, as absolute paths without ending: bytewise in order, each once."""
    repeats: Repeats = {}
    found = {os.path.abspath(prefix) for name in named for prefix in _prefixes(name, repeats)}
    for prefix in found:
        if not prefix.isprintable():
            raise UserError(f"the path {prefix!r} cannot be recorded in corpus.json. Rename it.")
        missing = [f"{prefix}{ending}" for ending in _ENDINGS if not os.path.isfile(f"{prefix}{ending}")]
        if missing:
            raise UserError(f"{missing[0]} is missing: a pair is {prefix}.bin and {prefix}.idx. Copy both.")
    own = [path.removesuffix(".bin") for path, _ in each_once([f"{prefix}.bin" for prefix in found], repeats)]
    report_repeats(repeats)
    return [Path(prefix) for prefix in sorted(own, key=os.fsencode)]


def _prefixes(name: str, repeats: Repeats) -> list[str]:
    stem = _without_ending(name)
    if any(os.path.isfile(f"{stem}{ending}") for ending in _ENDINGS):
        return [stem]
    if glob.has_magic(name):
        found = [path for ending in _ENDINGS for path in matches(f"{stem}{ending}", repeats)]
        if found:
            return [_without_ending(path) for path in found]
        raise UserError(f"no pair matches {name}. Give pairs by the path without .bin or .idx, or by a glob.")
    if os.path.isdir(name):
        raise UserError(f"{name} is a folder. Give the pairs in it, for example {os.path.join(name, '*')!r}.")
    raise UserError(
        f"no such pair: {name!r}: neither {stem}.bin nor {stem}.idx exists. Give pairs by the path without the ending."
    )


def _without_ending(name: str) -> str:
    return name[:-4] if name.endswith(_ENDINGS) else name


def examine_shard(shard: Shard, on_read: OnRead, *, vocabulary_size: int, eod_id: int | None) -> AdoptedShard:
    """Read a pair through, in bounded memory; `eod_id` should end its documents, unless it is None.

    Raises:
        CorpusError: the index is damaged, or an id is outside the vocabulary.
        OSError: a file cannot be read.
    """
    bin_path, idx_path = file_names(shard.prefix)
    ends = _Ends(shard, eod_id)
    digest, position = hashlib.sha256(), 0
    with bin_path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            tokens = np.frombuffer(piece, shard.dtype)
            _check_ids(tokens, bin_path, position=position, vocabulary_size=vocabulary_size)
            ends.look_at(tokens, position)
            position += tokens.size
            on_read(len(piece))
    entry = ShardEntry(
        name=str(shard.prefix),
        documents=shard.num_documents,
        tokens=shard.num_tokens,
        sha256_bin=digest.hexdigest(),
        sha256_idx=hash_file(idx_path, on_read=on_read),
        source=str(shard.prefix),
    )
    return AdoptedShard(entry, ends.num_ended, ends.num_without_end)


def _check_ids(tokens: npt.NDArray[np.integer], path: Path, *, position: int, vocabulary_size: int) -> None:
    if tokens.min() >= 0 and tokens.max() < vocabulary_size:
        return
    wrong = int(np.argmax((tokens < 0) | (tokens >= vocabulary_size)))
    raise CorpusError(
        f"{path} has the id {tokens[wrong]} (token {position + wrong:,} of the file, counted from 0), outside the "
        f"vocabulary of {vocabulary_size:,} ids. Give the tokenizer that the pair was made with (--tokenizer)."
    )


class _Ends:
    """Counts the documents that end with the end-of-document token, as the tokens go by."""

    def __init__(self, shard: Shard, eod_id: int | None) -> None:
        self._eod_id, self._blocks = eod_id, _document_ends(shard)
        self._next = np.empty(0, np.int64)
        self.num_ended = self.num_without_end = 0

    def look_at(self, tokens: npt.NDArray[np.integer], position: int) -> None:
        """The next tokens of the file; the first of them is at `position`."""
        while True:
            count = int(np.searchsorted(self._next, position + tokens.size, side="right"))
            last_tokens = tokens[self._next[:count] - 1 - position]
            self.num_ended += count
            if self._eod_id is not None:
                self.num_without_end += int(np.count_nonzero(last_tokens != self._eod_id))
            self._next = self._next[count:]
            if self._next.size or (block := next(self._blocks, None)) is None:
                return
            self._next = block


def _document_ends(shard: Shard) -> Iterator[npt.NDArray[np.int64]]:
    """Where documents end that are not empty, in tokens, some at a time."""
    end = 0
    for start in range(0, shard.num_documents, _DOCUMENTS_AT_ONCE):
        lengths = shard.lengths[start : start + _DOCUMENTS_AT_ONCE].astype(np.int64)
        ends = end + np.cumsum(lengths)
        end = int(ends[-1])
        yield ends[lengths > 0]
