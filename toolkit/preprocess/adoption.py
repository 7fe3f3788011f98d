"""Adoption of .bin and .idx pairs written by Megatron-LM, in place: a corpus folder that refers to them.

Every pair is read once, by a pool of threads: its hashes go into corpus.json, and so does the most common frame of the
documents. Ids outside the tokenizer's vocabulary, unsupported types, and pairs of different types are refused.
Nothing is copied and no pair is changed.
"""

import glob
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tokenization
from tokenization import Frame
from toolkit.core.console import console
from toolkit.core.errors import CorpusError, UserError
from toolkit.core.files import PARTIAL_FILES, cache_folder, hash_file
from toolkit.core.text import counted
from toolkit.data import CORPUS_MANIFEST, CorpusManifest, Shard, ShardEntry
from toolkit.data.corpus.files import OnRead, read_through
from toolkit.data.corpus.manifest import read_damaged_manifest
from toolkit.data.corpus.shards import file_names
from toolkit.preprocess.adopted_frames import FrameCounter, FrameIds
from toolkit.preprocess.sources.source import LeftOut, report_left_out
from toolkit.preprocess.sources.walk import each_once, matches, status_of
from toolkit.preprocess.tokenizer_checks import ids_that_differ_in_transformers, mask_notes
from toolkit.preprocess.writer.folder import TOKENIZER_FOLDER, complete_corpus, locked_output, unexpected_names

_ENDINGS = (".bin", ".idx")
_PIECE_BYTES = 1 << 22


@dataclass(frozen=True)
class Adoption:
    """Result of `adopt`: `tokenizer` has its mask token and frame set, `frames` counts those of nonempty documents.

    `num_ends_inside` counts end-of-document tokens with other tokens of their document around them.
    """

    manifest: CorpusManifest
    tokenizer: tokenization.Tokenizer
    frames: Counter[Frame]
    num_ends_inside: int

    @property
    def num_documents(self) -> int:
        """Number of nonempty documents."""
        return self.frames.total()

    @property
    def num_without_end(self) -> int:
        """Number of nonempty documents whose last token is not the tokenizer's end-of-document token."""
        eod = self.tokenizer.eod_id
        return 0 if eod is None else sum(n for frame, n in self.frames.items() if frame.back[-1:] != (eod,))

    def __str__(self) -> str:
        manifest, mask, end, frame = self.manifest, self.tokenizer.mask, self.tokenizer.eod_text, self.tokenizer.frame
        lines = [
            f"{counted(len(manifest.shards), 'pair')} adopted, nothing copied: {manifest.documents:,} documents, "
            f"{manifest.tokens:,} tokens ({manifest.dtype}).",
            f"Documents have {frame}; exports of encoders put the same around a text.",
            f"The mask token is {mask.text} (id {mask.id}).",
            *mask_notes(self.tokenizer),
        ]
        if num_others := self.num_documents - self.frames[frame]:
            lines.append(
                f"{num_others:,} of {self.num_documents:,} documents have something else around them, most often "
                f"{next(other for other, _ in self.frames.most_common() if other != frame)}."
            )
        if self.num_without_end:
            why = "they were made without --append-eod, or with another tokenizer"
            if frame.back and (last := frame.back[-1]) != self.tokenizer.eod_id:
                why = f"most end with {self.tokenizer.backend.id_to_token(last)} (id {last}) instead"
            lines.append(
                f"{self.num_without_end:,} of {self.num_documents:,} documents do not end with {end} "
                f"(id {self.tokenizer.eod_id}), the tokenizer's end-of-document token: {why}."
            )
        if self.num_ends_inside:
            lines.append(
                f"{end} stands {counted(self.num_ends_inside, 'time')} inside documents, where no document ends for "
                "training: texts were joined before the pairs were made."
            )
        if end is None:
            lines.append("No file names a token that ends a document (see --eod).")
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
    """Make a corpus folder for pairs that stay where they are; corpus.json has their absolute paths.

    Args:
        named: pairs, with or without `.bin` or `.idx`, and globs.
        output: the corpus folder; created if missing.
        tokenizer: the tokenizer that the pairs were made with, as for `tokenization.load`.
        eod: token that ends a document; by default the tokenizer's own.
        mask_token: as for `tokenization.load`.
        overwrite: whether an adopted corpus in the folder may be replaced.
    """
    prefixes = _find_shards(named)
    loaded = tokenization.load(tokenizer, mask_token=mask_token, eod=eod, cache_folder=cache_folder())
    for difference in ids_that_differ_in_transformers(loaded):
        console().print(f"{difference}. Megatron-LM's ids are AutoTokenizer's.")
    shards = _open(prefixes)
    with locked_output(output):
        try:
            _check_output(output, prefixes, loaded, overwrite=overwrite)
            pairs = _examine(shards, loaded)
            _clear(output)
            frames = sum((counts for _, counts, _ in pairs), Counter[Frame]())
            num_ends = sum(count for _, _, count in pairs)
            framed = sum(n * (frame.front + frame.back).count(loaded.eod_id) for frame, n in frames.items())
            most_common = max(frames, key=frames.__getitem__, default=Frame())  # of no document: nothing around it
            loaded.made_with(most_common)
            manifest = complete_corpus(
                output,
                loaded,
                shards=[entry for entry, _, _ in pairs],
                dtype=shards[0].dtype.name,
                special_text_hits=0,
                skipped={},
            )
            return Adoption(manifest, loaded, frames, num_ends - framed)
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
    inside = [prefix for prefix in prefixes if prefix.resolve().is_relative_to(output.resolve())]
    if inside:
        raise UserError(
            f"the pair {inside[0]} lies in the output folder {output}, whose files belong to the corpus and may be "
            "replaced. Name another folder: nothing is copied into it."
        )
    if not (output / CORPUS_MANIFEST).exists():
        others = unexpected_names(output)
        # An adoption killed before it wrote corpus.json leaves its tokenizer; the same adoption may replace it.
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
    try:
        return tokenization.load(str(folder)).fingerprint == tokenizer.fingerprint
    except tokenization.TokenizationError:
        return False


def _examine(
    shards: Sequence[Shard], tokenizer: tokenization.Tokenizer
) -> list[tuple[ShardEntry, Counter[Frame], int]]:
    """Read all pairs completely; stop at the first error."""
    size, end_id, ids = tokenizer.encoded_vocabulary_size, tokenizer.eod_id, FrameIds.of(tokenizer)
    readers = [
        partial(examine_pair, shard.prefix, vocabulary_size=size, end_id=end_id, frame_ids=ids) for shard in shards
    ]
    num_bytes = sum(path.stat().st_size for shard in shards for path in file_names(shard.prefix))
    return read_through("Reading", readers, num_bytes=num_bytes)


def _clear(output: Path) -> None:
    """Remove what an earlier adoption wrote; corpus.json goes first."""
    (output / CORPUS_MANIFEST).unlink(missing_ok=True)
    for summary in output.glob("plans-S[0-9]*"):
        summary.unlink()
    for folder in (*output.glob(TOKENIZER_FOLDER), *output.glob(PARTIAL_FILES)):
        shutil.rmtree(folder)


def _find_shards(named: Sequence[str]) -> list[Path]:
    """Absolute paths of the pairs without ending, each once, in bytewise order."""
    left_out: LeftOut = {}
    found = {os.path.abspath(prefix) for name in named for prefix in _prefixes(name, left_out)}
    for prefix in found:
        if not prefix.isprintable():
            raise UserError(f"the path {prefix!r} cannot be recorded in corpus.json. Rename it.")
        missing = [f"{prefix}{ending}" for ending in _ENDINGS if not os.path.isfile(f"{prefix}{ending}")]
        if missing:
            raise UserError(f"{missing[0]} is missing: a pair is {prefix}.bin and {prefix}.idx. Copy both.")
    own = [path.removesuffix(".bin") for path, _ in each_once([f"{prefix}.bin" for prefix in found], left_out)]
    report_left_out(left_out)
    return [Path(prefix) for prefix in sorted(own, key=os.fsencode)]


def _prefixes(name: str, left_out: LeftOut) -> list[str]:
    stem = _without_ending(name)
    if any(os.path.isfile(f"{stem}{ending}") for ending in _ENDINGS):
        return [stem]
    if glob.has_magic(name):
        found = [path for ending in _ENDINGS for path in matches(f"{stem}{ending}", left_out)]
        for path in found:
            status_of(path)  # raises for a broken link, with its target
        if found:
            return [_without_ending(path) for path in found]
        raise UserError(f"no pair matches {name}. Give pairs by the path without .bin or .idx, or by a glob.")
    if os.path.isdir(name):
        raise UserError(f"{name} is a directory. Give the pairs in it, for example {os.path.join(name, '*')!r}.")
    raise UserError(
        f"no such pair: {name!r}: neither {stem}.bin nor {stem}.idx exists. Give pairs by the path without the ending."
    )


def _without_ending(name: str) -> str:
    return name[:-4] if name.endswith(_ENDINGS) else name


def examine_pair(
    prefix: Path, on_read: OnRead, *, vocabulary_size: int, end_id: int | None, frame_ids: FrameIds
) -> tuple[ShardEntry, Counter[Frame], int]:
    """Read a pair completely, in bounded memory; documents may have `frame_ids` around them.

    Return its entry of corpus.json, its counts for an `Adoption`, and the number of its ids that are `end_id`.
    """
    # Mapped only while this pair is read: a large corpus may have more pairs than the system allows mappings.
    shard, (bin_path, idx_path) = Shard(prefix), file_names(prefix)
    counter = FrameCounter(shard, frame_ids)
    digest, position, num_ends = hashlib.sha256(), 0, 0
    with bin_path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            tokens = np.frombuffer(piece, shard.dtype)
            _check_ids(tokens, bin_path, position=position, vocabulary_size=vocabulary_size)
            position += tokens.size
            num_ends += 0 if end_id is None else int(np.count_nonzero(tokens == end_id))
            counter.read_to(position)
            on_read(len(piece))
    entry = ShardEntry(
        name=str(shard.prefix),
        documents=shard.num_documents,
        tokens=shard.num_tokens,
        sha256_bin=digest.hexdigest(),
        sha256_idx=hash_file(idx_path, on_read=on_read),
        source=str(shard.prefix),
    )
    return entry, counter.frames, num_ends


def _check_ids(tokens: npt.NDArray[np.integer], path: Path, *, position: int, vocabulary_size: int) -> None:
    if tokens.min() >= 0 and tokens.max() < vocabulary_size:
        return
    wrong = int(np.argmax((tokens < 0) | (tokens >= vocabulary_size)))
    raise CorpusError(
        f"{path} has the id {tokens[wrong]} (token {position + wrong:,} of the file, counted from 0), outside the "
        f"vocabulary of {vocabulary_size:,} ids. Give the tokenizer that the pair was made with (--tokenizer)."
    )
