"""Adopt pairs of .bin and .idx that Megatron-LM wrote, where they are: a corpus folder that names them.

Every pair is read through once, by several threads: its hashes go into corpus.json; ids that the tokenizer does not
have, types that are not read, and pairs of different types are refused. Nothing is copied and no pair is changed.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import tokenization
from toolkit.core.errors import CorpusError, UserError
from toolkit.core.files import cache_folder
from toolkit.core.text import counted
from toolkit.data.corpus.manifest import MANIFEST_NAME, CorpusManifest, read_damaged_manifest
from toolkit.data.corpus.read_through import read_through
from toolkit.data.corpus.shards import Shard, file_names
from toolkit.preprocess.adopt.shard_files import AdoptedShard, examine_shard, find_shards
from toolkit.preprocess.writer.folder import TOKENIZER_FOLDER, complete_corpus, locked, unexpected_names


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
    prefixes = find_shards(named)
    loaded = tokenization.load(tokenizer, mask_token=mask_token, eod=eod, cache_folder=cache_folder())
    shards = _open(prefixes)
    with locked(output):
        try:
            _check_output(output, prefixes, overwrite=overwrite)
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


def _check_output(output: Path, prefixes: Sequence[Path], *, overwrite: bool) -> None:
    """Refuse a folder in which something could be lost."""
    inside = [prefix for prefix in prefixes if prefix.resolve().is_relative_to(output.resolve())]
    if inside:
        raise UserError(
            f"the pair {inside[0]} lies in the output folder {output}, whose files belong to the corpus and may be "
            "replaced. Name another folder: nothing is copied into it."
        )
    if not (output / MANIFEST_NAME).exists():
        if others := unexpected_names(output):
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
    if (output / TOKENIZER_FOLDER).exists():
        shutil.rmtree(output / TOKENIZER_FOLDER)
