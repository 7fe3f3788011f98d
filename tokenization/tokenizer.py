"""A tokenizer with decided special tokens: text to arrays of ids, ids to text, a fingerprint, a folder to save.

Two vocabularies are kept apart. Texts are encoded with the tokenizer as it was found, so that ids do not depend on
which mask token was decided; the mask belongs to the vocabulary that is counted, fingerprinted and saved.
"""

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenization.errors import TokenizationError
from tokenization.fingerprint import byte_level_bytes, fingerprint
from tokenization.mask import choose_mask
from tokenization.memory import release_freed_memory
from tokenization.names import ROLES, SpecialNames
from tokenization.special_text import SpecialTextCounter

if TYPE_CHECKING:
    import tokenizers

__all__ = ["EncodingRules", "Tokenizer"]

# Characters of a text whose encoding takes some 25 MB of working memory, most of which stays with a thread.
_LONG_TEXT = 1 << 18


@dataclass(frozen=True)
class EncodingRules:
    """How a text becomes ids.

    Args:
        parse_special_text: the string of a special token inside a text becomes that token, as in transformers;
            otherwise it is text like any other.
        add_bos: keep what the tokenizer's own post-processor puts in front of a text.
        add_eod: append the end-of-document token.
    """

    parse_special_text: bool = True
    add_bos: bool = True
    add_eod: bool = True


class Tokenizer:
    """A Hugging Face tokenizer whose special tokens are decided; made by `tokenization.load`.

    Attributes:
        mask: the mask token, and where it comes from.
        eod_id: id that ends a document: eos, else sep, else what was asked for; None where nothing names one.
        eod_text: its text.
        vocabulary_size: number of ids, the mask included (highest id + 1).
        encoded_vocabulary_size: the same without an appended mask; no id of `encode_batch` reaches it.
        special_ids: the ids of `bos`, `eos`, `pad`, `mask`, None where there is none.
        all_special_ids: every id that is special, ascending.
        rules: how texts are encoded.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        names: SpecialNames,
        *,
        mask_token: str,
        eod: str | None,
        rules: EncodingRules,
    ) -> None:
        self.rules = rules
        self._backend = _settled(backend, names)
        ids = self._backend.get_vocab(with_added_tokens=True)
        if not ids:
            raise TokenizationError("The tokenizer has an empty vocabulary.")
        if eod is not None and eod not in ids:
            raise TokenizationError(
                f"The end-of-document token {eod!r} is not in the vocabulary ({len(ids):,} tokens). "
                "Give one that is (--eod)."
            )
        roles = dict(names.roles)
        if eod is not None:
            roles.setdefault("eos", eod)
        self.encoded_vocabulary_size = max(ids.values()) + 1
        self.mask = choose_mask(
            mask_token,
            ids,
            named=roles.pop("mask", None),
            roles={role: ids[text] for role, text in roles.items()},
            next_id=self.encoded_vocabulary_size,
        )
        self._names = SpecialNames({**roles, "mask": self.mask.text}, names.extra)
        self._ids = {**ids, self.mask.text: self.mask.id}
        self.vocabulary_size = max(self.encoded_vocabulary_size, self.mask.id + 1)
        self.eod_text = eod if eod is not None else roles.get("eos", roles.get("sep"))
        self.eod_id = None if self.eod_text is None else self._ids[self.eod_text]
        self.special_ids = {
            role: self._ids[self._names.roles[role]] if role in self._names.roles else None
            for role in ("bos", "eos", "pad", "mask")
        }
        declared = [token_id for token_id, token in self._backend.get_added_tokens_decoder().items() if token.special]
        named = [self._ids[text] for text in self._names.texts()]
        self.all_special_ids = tuple(sorted({*declared, *named}))
        self._backend.encode_special_tokens = not rules.parse_special_text

    def require_eod(self) -> int:
        """The id that ends a document.

        Raises:
            TokenizationError: no file names one and none was given.
        """
        if self.eod_id is None:
            raise TokenizationError(
                "No token ends a document: neither an eos_token nor a sep_token is named in tokenizer_config.json or "
                "special_tokens_map.json beside tokenizer.json, and it is not guessed. "
                f"{self._suggestion()}or write documents without an end (--no-eod)."
            )
        return self.eod_id

    def _suggestion(self) -> str:
        special = [text for text, token_id in self._ids.items() if token_id in self.all_special_ids]
        listed = ", ".join(sorted(set(special) - {self.mask.text})[:8])
        known = f" (its special tokens: {listed})" if listed else ""
        return f"Name the token with --eod TOKEN{known}, "

    def encode_batch(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Encode texts, each as the tokenizer's post-processor leaves it, then the end-of-document token.

        `tokenizers` (0.23) hands ids out as a Python list only, no buffer; so the ids of one text at a time pass
        through a list, and it is dropped before the next. Its own working memory is about 100 bytes per character
        of each text in work, and it takes a text whole; so callers pass blocks of a few megabytes.

        Returns:
            The ids of all texts one after the other, and the number of ids of each text, end included. A text
            without any id has length 0 and no end.

        Raises:
            TokenizationError: no token ends a document, or the vocabulary cannot spell a text.
        """
        ends = [self.require_eod()] if self.rules.add_eod else []
        num_front = 0 if self.rules.add_bos else self._num_front
        try:
            encodings = self._backend.encode_batch_fast(list(texts))
        except Exception as error:  # `tokenizers` raises bare Exception for what a vocabulary cannot spell.
            raise TokenizationError(f"The tokenizer cannot encode this text: {error}.") from error
        sizes = np.fromiter((len(encoding) for encoding in encodings), dtype=np.int64, count=len(encodings))
        sizes = np.maximum(sizes - num_front, 0)
        lengths = np.where(sizes > 0, sizes + len(ends), 0)
        ids = np.empty(int(lengths.sum()), dtype=np.uint32)
        start = 0
        encodings.reverse()
        for size, length in zip(sizes.tolist(), lengths.tolist(), strict=True):
            encoding = encodings.pop()
            if length:
                ids[start : start + size] = array("I", encoding.ids)[num_front:]
                ids[start + size : start + length] = ends
            start += length
        if any(len(text) > _LONG_TEXT for text in texts):
            release_freed_memory()
        return ids, lengths

    @cached_property
    def _num_front(self) -> int:
        """How many ids the post-processor puts in front of a text."""
        added = self._backend.encode("a").special_tokens_mask
        return added.index(0) if 0 in added else 0

    def count_special_text(self, texts: Sequence[str]) -> int:
        """How often strings of special tokens stand in the texts."""
        return self._special_text.count(texts)

    @cached_property
    def _special_text(self) -> SpecialTextCounter:
        added = self._backend.get_added_tokens_decoder().values()
        return SpecialTextCounter(token.content for token in added if token.special)

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> str:
        """The text of ids, special tokens written out."""
        text: str = self._complete.decode(np.asarray(ids).tolist(), skip_special_tokens=False)
        return text

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 over the vocabulary's ids and bytes and the special ids; equal whatever file they came from."""
        added = {token.content for token in self._backend.get_added_tokens_decoder().values()} | {self.mask.text}
        is_byte_level = any("ByteLevel" in repr(part) for part in (self._backend.pre_tokenizer, self._backend.decoder))
        vocabulary = {
            token_id: byte_level_bytes(text) if is_byte_level and text not in added else text.encode("utf-8")
            for text, token_id in self._ids.items()
        }
        return fingerprint(vocabulary, self.special_ids, special_ids=self.all_special_ids)

    @cached_property
    def _complete(self) -> "tokenizers.Tokenizer":
        """The tokenizer with every decided token special, as it is saved."""
        from tokenizers import Tokenizer as Backend

        complete = Backend.from_str(self._backend.to_str())
        _declare(complete, self._names.texts())
        if complete.token_to_id(self.mask.text) != self.mask.id:
            raise TokenizationError(
                f"The mask token {self.mask.text!r} cannot be appended as id {self.mask.id}: the vocabulary's ids have "
                "gaps. Choose a token that exists (--mask-token)."
            )
        return complete

    def files(self) -> dict[str, str]:
        """Name and content of the files that `save` writes; equal tokenizers, equal files."""
        config: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{f"{role}_token": self._names.roles[role] for role in ROLES if role in self._names.roles},
        }
        if self._names.extra:
            config["extra_special_tokens"] = list(self._names.extra)
        return {
            "tokenizer.json": self._complete.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n",
        }

    def save(self, folder: Path) -> None:
        """Write a folder that `transformers.AutoTokenizer` and `tokenization.load` read.

        The decided tokens are named in it, so that loading it decides the same again. A pad token is not invented.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files().items():
            (folder / name).write_text(content, encoding="utf-8")


def _settled(backend: "tokenizers.Tokenizer", names: SpecialNames) -> "tokenizers.Tokenizer":
    """Whole documents, the same every time: no truncation, no padding, no dropout; named tokens are special."""
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None
    ids = backend.get_vocab(with_added_tokens=True)
    # A mask that is named and missing is appended later, after the vocabulary that texts are encoded with.
    missing_mask = {names.roles["mask"]} - set(ids) if "mask" in names.roles else set()
    _declare(backend, [text for text in names.texts() if text not in missing_mask])
    return backend


def _declare(backend: "tokenizers.Tokenizer", texts: Sequence[str]) -> None:
    """Make tokens special, as transformers does with the ones that are named; a missing one gets the next id."""
    from tokenizers import AddedToken

    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    new = [AddedToken(text, special=True, normalized=False) for text in texts if text not in special]
    if new:
        backend.add_special_tokens(new)
