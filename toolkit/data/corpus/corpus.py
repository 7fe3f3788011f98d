"""A corpus on disk: shards of tokens, a manifest and the tokenizer that made them. Opening it reads no tokens."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from toolkit.core.cache import CachedResult
from toolkit.core.errors import CorpusError
from toolkit.core.files import hash_file
from toolkit.core.text import counted
from toolkit.core.types import Vocabulary, WordBoundaries
from toolkit.data.corpus.files import kept_open, open_folder
from toolkit.data.corpus.manifest import CorpusManifest, read_manifest
from toolkit.data.corpus.shards import Shard, file_names


class Corpus:
    """A corpus folder, opened for reading.

    Attributes:
        shards: the shards, opened when first used; only the last ones used in this process stay open.

    Raises:
        CorpusError: the folder is not a corpus, or a file is missing or has the wrong size; the message names it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest: CorpusManifest = read_manifest(self.path)
        self.shards: Sequence[Shard] = _Shards(self.path, self.manifest)

    @property
    def num_documents(self) -> int:
        """Documents in all shards."""
        return self.manifest.documents

    @property
    def num_tokens(self) -> int:
        """Tokens in all shards."""
        return self.manifest.tokens

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the tokenizer that made the ids."""
        return self.manifest.tokenizer.fingerprint

    @property
    def tokenizer_folder(self) -> Path:
        """The tokenizer, as transformers load it."""
        return self.path / "tokenizer"

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ids an objective may need."""
        tokenizer = self.manifest.tokenizer
        return Vocabulary.by_role(
            vars(tokenizer.special_ids),
            size=tokenizer.vocab_size,
            special_ids=tokenizer.all_special_ids,
            words=self._words,
        )

    def _words(self) -> WordBoundaries:
        """Word boundaries by id, from the tokenizer; cached, since a large vocabulary takes a second."""
        from tokenization.loading import load
        from tokenization.word_boundaries import WORD_RULE, word_boundaries

        path, vocabulary = self.tokenizer_folder / "tokenizer.json", self.vocabulary
        if not path.is_file():
            raise CorpusError(
                f"{path}, which shows where words begin, does not exist. Copy the corpus again, with its folder "
                'tokenizer/, or mask tokens instead (unit = "token").'
            )
        cached = CachedResult("word-boundaries", [WORD_RULE, self.fingerprint, hash_file(path)])
        packed = cached.read()
        if packed is None:
            tokenizer = load(self.tokenizer_folder)
            if (tokenizer.vocabulary_size, tokenizer.all_special_ids) != (vocabulary.size, vocabulary.special_ids):
                raise CorpusError(
                    f"{self.tokenizer_folder} is not the tokenizer of this corpus: its ids or special ids differ from "
                    "those in corpus.json. Copy the corpus again."
                )
            packed = np.packbits(word_boundaries(tokenizer), axis=1).tobytes().hex()
            cached.write(packed)
        bytes_2 = np.frombuffer(bytes.fromhex(packed), np.uint8).reshape(2, -1)
        begins_V, ends_V = np.unpackbits(bytes_2, axis=1, count=vocabulary.size).astype(bool)
        return WordBoundaries(begins_V, ends_V, rule=WORD_RULE)


class _Shards(Sequence[Shard]):
    """The shards of a corpus, opened on demand. Their sizes are checked at once, without opening any."""

    def __init__(self, folder: Path, manifest: CorpusManifest) -> None:
        self._folder, self._manifest = folder, manifest
        itemsize = np.dtype(manifest.dtype).itemsize
        with open_folder(folder) as descriptor:
            # With tens of thousands of shards, path objects and whole paths would be half of the time.
            for name, tokens in zip(manifest.table.names, manifest.table.tokens.tolist(), strict=True):
                size = _size(folder, f"{name}.bin", descriptor)
                _size(folder, f"{name}.idx", descriptor)
                if size != tokens * itemsize:
                    raise CorpusError(
                        f"{folder / name}.bin is damaged: expected {tokens * itemsize:,} bytes for {tokens:,} "
                        f"{manifest.dtype} tokens, found {size:,}. Copy the corpus again."
                    )

    def __len__(self) -> int:
        return len(self._manifest.shards)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | Sequence[Shard]:
        numbers = range(len(self))[index]
        return kept_open(self._open, numbers) if isinstance(numbers, int) else [self[number] for number in numbers]

    def _open(self, number: int) -> Shard:
        entry = self._manifest.shards[number]
        shard = Shard(self._folder / entry.name)
        found = (shard.num_documents, shard.num_tokens, shard.dtype.name)
        if found != (expected := (entry.documents, entry.tokens, self._manifest.dtype)):
            raise CorpusError(
                f"{file_names(shard.prefix)[1]} does not belong to this corpus: it has {_described(*found)}, "
                f"corpus.json says {_described(*expected)}. Copy the corpus again."
            )
        return shard


def _described(documents: int, tokens: int, dtype: str) -> str:
    return f"{counted(documents, 'document')} of {tokens:,} {dtype} tokens"


def _size(folder: Path, name: str, descriptor: int) -> int:
    try:
        return os.stat(name, dir_fd=descriptor).st_size
    except OSError as error:
        raise CorpusError(
            f"{folder / name}, which corpus.json names, cannot be read: {error.strerror}. "
            "The corpus is incomplete: copy it again, or rebuild it."
        ) from error
