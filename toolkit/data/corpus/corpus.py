"""A corpus on disk: shards of tokens, a manifest and the tokenizer that made them. Opening it reads no tokens."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Protocol, overload

import numpy as np

from toolkit.core.cache import CachedResult
from toolkit.core.errors import CorpusError
from toolkit.core.files import hash_file
from toolkit.core.text import counted
from toolkit.core.types import Vocabulary, WordBoundaries
from toolkit.data.corpus.files import kept_open, open_folder, unreadable
from toolkit.data.corpus.manifest import CorpusManifest, read_manifest
from toolkit.data.corpus.shard_index import ShardIndex
from toolkit.data.corpus.shards import Shard, file_names

Sizes = Literal["check", "trust"]


class ShardSource(Protocol):
    """Source from which the files of a corpus's shards are fetched into its folder on demand.

    Attributes:
        url: name of the corpus in messages.
    """

    url: str

    def size(self, name: str) -> int:
        """Size of a file, in bytes; raise `CorpusError` if it does not exist."""

    def fetch_index(self, name: str, sha256: str) -> None:
        """Fetch the .idx of a shard."""

    def open(self, name: str, sha256: str, open_shard: Callable[[], Any]) -> Any:
        """Result of `open_shard` once the shard's .bin is there; the file may be removed once the result is dropped."""


class Corpus:
    """A corpus folder, opened for reading.

    Args:
        source: where its shards come from, if they are not all in the folder.
        sizes: "trust" if another process of this machine checks the size of every file: ten thousand ranks would keep
            shared storage busy with that alone. A shard is still compared with the manifest when it is opened.

    Attributes:
        place: its name in messages: the folder, or the URL that it is fetched from.
        shards: the shards, opened on first use; only the most recently used ones in this process stay open.

    Raises:
        CorpusError: the folder is not a corpus, or a file is missing or has the wrong size; the message names it.
    """

    def __init__(self, path: str | Path, *, source: ShardSource | None = None, sizes: Sizes = "check") -> None:
        self.path, self.sizes = Path(path), sizes
        self.place = str(self.path) if source is None else source.url
        self.manifest: CorpusManifest = read_manifest(self.path)
        self.shards = Shards(self.path, self.manifest, source)
        if sizes == "check":
            self.shards.check_sizes()

    @property
    def num_documents(self) -> int:
        """Documents in all shards."""
        return self.manifest.documents

    @property
    def num_tokens(self) -> int:
        """Tokens in all shards."""
        return self.manifest.tokens

    @property
    def num_bytes(self) -> int:
        """Size of the tokens of all shards, in bytes."""
        return self.num_tokens * np.dtype(self.manifest.dtype).itemsize

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the tokenizer that made the ids."""
        return self.manifest.tokenizer.fingerprint

    @property
    def tokenizer_folder(self) -> Path:
        """Folder of the tokenizer, in the form that transformers loads."""
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


class Shards(Sequence[Shard]):
    """The shards of a corpus, opened on demand."""

    def __init__(self, folder: Path, manifest: CorpusManifest, source: ShardSource | None) -> None:
        self._folder, self._manifest, self._source = folder, manifest, source

    def check_sizes(self) -> None:
        """Check that every file exists and every .bin has the size in the manifest, without opening any."""
        folder, manifest, source = self._folder, self._manifest, self._source
        itemsize = np.dtype(manifest.dtype).itemsize
        with ExitStack() as stack:
            size_of = (
                partial(_size, folder, stack.enter_context(open_folder(folder))) if source is None else source.size
            )
            # With tens of thousands of shards, path objects and whole paths would take half of the time.
            for name, tokens in zip(manifest.table.names, manifest.table.tokens.tolist(), strict=True):
                size = size_of(f"{name}.bin")
                size_of(f"{name}.idx")
                if size != tokens * itemsize:
                    place = folder / name if source is None else f"{source.url}/{name}"
                    raise CorpusError(
                        f"{place}.bin is damaged: expected {tokens * itemsize:,} bytes for {tokens:,} "
                        f"{manifest.dtype} tokens, found {size:,}. Copy the corpus again."
                    )

    def index_of(self, number: int) -> ShardIndex:
        """The index of a shard; its tokens need not be there."""
        name = self._manifest.table.names[number]
        if self._source is not None:
            self._source.fetch_index(name, self._manifest.table.sha256_idx(number))
        return ShardIndex(file_names(self._folder / name)[1])

    def __len__(self) -> int:
        return len(self._manifest.shards)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | Sequence[Shard]:
        numbers = range(len(self))[index]
        if not isinstance(numbers, int):
            return [self[number] for number in numbers]
        if self._source is None:
            return kept_open(self._open, numbers)
        entry = self._manifest.shards[numbers]
        shard: Shard = self._source.open(entry.name, entry.sha256_bin, partial(self._open_mapped, numbers))
        return shard

    def _open_mapped(self, number: int) -> Shard:
        """A shard with its .bin already mapped, so that it can be read even after the file is removed."""
        self.index_of(number)
        shard = self._open(number)
        _ = shard.tokens
        return shard

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


def _size(folder: Path, descriptor: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=descriptor).st_size
    except OSError as error:
        raise unreadable(folder / name, error) from error
