"""The `Tokenizer` class: encoding to arrays of ids, decoding, a fingerprint, and saving.

Two vocabularies are kept separate. Texts are encoded with the tokenizer as loaded, so that ids do not depend on the
choice of the mask token; the mask belongs to the vocabulary that is counted, fingerprinted and saved.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenization.backend import (
    check_ids,
    completed,
    fingerprint,
    framing_post_processor,
    settled,
    undeclared,
    unknown_id,
    vocabulary_bytes,
)
from tokenization.errors import TokenizationError
from tokenization.frame import ENCODING_FILE, Frame, post_processor_frame
from tokenization.mask import MaskOrigin, choose_mask
from tokenization.reference import EncodingRules, HuggingFaceReference, Ids, Lengths, TokenizerKind, TokenizerParts
from tokenization.special_tokens import ROLES, SpecialNames, SpecialTextCounter

if TYPE_CHECKING:
    import tokenizers

_NO_END = {
    TokenizerKind.HUGGINGFACE: "neither an eos_token nor a sep_token is named in tokenizer_config.json or "
    "special_tokens_map.json beside the vocabulary",
    TokenizerKind.TIKTOKEN: "the tokenizer spec names neither eos nor sep",
    TokenizerKind.SENTENCEPIECE: "the SentencePiece model has no end-of-sentence piece",
}


class Tokenizer:
    """A tokenizer with its special tokens chosen; made by `tokenization.load`.

    Attributes:
        backend: the Hugging Face form that texts are encoded with; do not modify it.
        kind: library that the ids of `encode_batch` come from.
        mask: the mask token and its origin.
        eod_id: id that ends a document: the requested one, else eos, else sep; None if absent.
        is_eod_given: whether it was requested.
        vocabulary_size: number of ids, including the mask (highest id + 1).
        encoded_vocabulary_size: the same without an appended mask; all ids from `encode_batch` are below it.
        special_ids: the ids of `bos`, `eos`, `pad`, `mask`; None if absent.
        role_ids: token id of each assigned role, among all of `special_tokens.ROLES`.
        rules: how texts are encoded, with all defaults resolved.
        folder: of the configuration files next to the vocabulary; None if there are none.
        source: `organization/name@commit` of a tokenizer from the hub; None for local files.
        converted_form: the `tokenizer.json` that `backend` was read from, if the file was of another kind.
    """

    def __init__(self, parts: TokenizerParts, *, mask_token: str, eod: str | None, rules: EncodingRules) -> None:
        names, self._digest, self.converted_form = parts.names, parts.digest, parts.content
        self.backend = settled(parts.backend, names)
        self._reference = parts.reference or HuggingFaceReference(self.backend)
        self.kind = self._reference.kind
        self.rules = rules.settled(self.kind)
        self.folder, self.source, self.is_eod_given = parts.folder, parts.source, eod is not None
        ids = self.backend.get_vocab(with_added_tokens=True)
        check_ids(ids)
        if eod is not None and eod not in ids:
            raise TokenizationError(
                f"the end-of-document token {eod!r} is not in the vocabulary ({len(ids):,} tokens). "
                "Give one that is (--eod)."
            )
        roles, end = dict(names.roles), dict[str, int]()
        if eod is not None:
            roles.setdefault("eos", eod)
            end["end-of-document"] = ids[eod]
        self.encoded_vocabulary_size = max(ids.values()) + 1
        self.mask = choose_mask(
            mask_token,
            ids,
            named=roles.pop("mask", None),
            roles={role: ids[text] for role, text in roles.items()} | end,
            next_id=self.encoded_vocabulary_size,
        )
        self._names = SpecialNames({**roles, "mask": self.mask.text}, names.extra)
        known = {**{text: ids[text] for text in self._names.texts() if text in ids}, self.mask.text: self.mask.id}
        self.vocabulary_size = max(self.encoded_vocabulary_size, self.mask.id + 1)
        self.eod_text = eod if eod is not None else roles.get("eos", roles.get("sep"))
        self.eod_id = None if self.eod_text is None else ids[self.eod_text]
        self.role_ids = {role: known[text] for role, text in self._names.roles.items()}
        self.special_ids = {role: self.role_ids.get(role) for role in ("bos", "eos", "pad", "mask")}
        added = self.backend.get_added_tokens_decoder().items()
        self._declared = {token_id: token.content for token_id, token in added if token.special}
        self.is_mask_ordinary = self.mask.origin is MaskOrigin.CHOSEN and self.mask.id not in self._declared
        self.all_special_ids = tuple(sorted({*self._declared, *known.values()}))
        self.backend.encode_special_tokens = not self.rules.parse_special_text
        if eod is not None:
            self.require_eod()

    def require_eod(self) -> int:
        """The id that ends a document; raise `TokenizationError` if none is named or given, or if it is the mask."""
        if self.eod_id is None:
            listed = ", ".join(sorted({*self._declared.values()} - {self.mask.text})[:8])
            known = f" (its special tokens: {listed})" if listed else ""
            raise TokenizationError(
                f"no token ends a document: {_NO_END[self.kind]}. "
                f"Name the token with --eod TOKEN{known}, or write documents without an end (--no-eod)."
            )
        if self.eod_id == self.mask.id:
            raise TokenizationError(
                f"the token {self.mask.text!r} (id {self.eod_id}) cannot end documents: it is the mask token, "
                f"{self.mask.origin}. Choose another end (--eod) or another mask (--mask-token)."
            )
        return self.eod_id

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        """Encode texts with the reference, post-processor included, each followed by `appended_ids`.

        Runs on the calling thread, and may run on several at once. Working memory is up to 100 bytes per character
        of the longest text, so callers pass blocks of a few megabytes.

        Returns:
            The concatenated ids of all texts, and the number of ids of each text, including `appended_ids`. A text
            without an id of its own has length 0.

        Raises:
            TokenizationError: there is no end-of-document token.
            CannotEncode: the vocabulary cannot represent one of the texts.
        """
        own, end = self.own_frame, self.appended_ids
        num_front = 0 if self.rules.add_bos else len(own.front)
        num_framing = len(own.front) - num_front + len(own.back)
        parts: list[Ids] = [end[:0]]
        lengths = np.zeros(len(texts), dtype=np.int64)
        for number, ids in enumerate(self._reference.encode(texts)):
            kept = ids[num_front:]
            if kept.size > num_framing:
                parts += [kept, end]
                lengths[number] = kept.size + end.size
        return np.concatenate(parts), lengths

    @cached_property
    def own_frame(self) -> Frame:
        """Ids that the post-processor puts around a text."""
        return post_processor_frame(self.backend) if self.kind is TokenizerKind.HUGGINGFACE else Frame()

    @cached_property
    def frame(self) -> Frame:
        """Ids around every document, as added by `encode_batch`, or as set by `made_with`."""
        front = self.own_frame.front if self.rules.add_bos else ()
        return Frame(front, (*self.own_frame.back, *self.appended_ids.tolist()))

    def made_with(self, frame: Frame) -> None:
        """Adopt the frame of documents encoded elsewhere; after that the tokenizer is only saved, not used."""
        is_own = frame.front == self.own_frame.front
        add_bos = self.rules.add_bos if is_own else bool(frame.front)
        add_eod = self.eod_id is not None and frame.back[-1:] == (self.eod_id,)
        self.frame, self.rules = frame, replace(self.rules, add_bos=add_bos, add_eod=add_eod)

    @property
    def ends_texts(self) -> bool:
        """True if the post-processor ends every text with the end-of-document token."""
        return self.eod_id is not None and self.own_frame.back[-1:] == (self.eod_id,)

    @property
    def appended_ids(self) -> Ids:
        """Ids that `encode_batch` appends to a document: the end-of-document token, or nothing.

        The token is not appended again if the post-processor ends texts with it, unless it was given explicitly.
        """
        appended = []
        if self.rules.add_eod:
            eod_id = self.require_eod()
            appended = [eod_id] if self.is_eod_given or not self.ends_texts else []
        return np.array(appended, dtype=np.uint32)

    def special_text_hits(self, texts: Sequence[str], ids: Ids, lengths: Lengths) -> npt.NDArray[np.int64]:
        """Number of special-token strings in each text; `ids` and `lengths` are from `encode_batch` of these texts.

        If such strings are parsed, only texts with a special id inside are searched.
        """
        suspects: Iterable[int] = range(len(texts))
        if self.rules.parse_special_text:
            suspects = np.flatnonzero(self._num_inside(self._declared, ids, lengths) > 0).tolist()
        hits = np.zeros(len(texts), dtype=np.int64)
        for number in suspects:
            hits[number] = self._special_text.count(texts[number])
        return hits

    def unknown_counts(self, ids: Ids, lengths: Lengths) -> npt.NDArray[np.int64]:
        """Number of unknown tokens in each text; `ids` and `lengths` are from `encode_batch`."""
        if self.unknown_id is None or not (ids == self.unknown_id).any():
            return np.zeros_like(lengths)
        return self._num_inside([self.unknown_id], ids, lengths)

    def _num_inside(self, counted: Iterable[int], ids: Ids, lengths: Lengths) -> npt.NDArray[np.int64]:
        """Number of `counted` ids in each text, without its frame."""
        is_counted = np.zeros(self.encoded_vocabulary_size, dtype=bool)
        is_counted[list(counted)] = True
        around = np.array([*self.frame.front, *self.frame.back], dtype=np.int64)
        num_before = np.concatenate([[0], np.cumsum(is_counted[ids])])
        ends = np.cumsum(lengths)
        inside: Lengths = num_before[ends] - num_before[ends - lengths]
        framed: Lengths = np.where(lengths, is_counted[around].sum(), 0)
        return inside - framed

    @cached_property
    def unknown_id(self) -> int | None:
        """Id of the unknown token; None if absent."""
        return unknown_id(self.backend, self.form)

    @cached_property
    def _special_text(self) -> SpecialTextCounter:
        return SpecialTextCounter(self._declared.values())

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> str:
        """Text of the ids, special tokens written out."""
        return str(self._complete.decode(np.asarray(ids).tolist(), skip_special_tokens=False))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary's ids and bytes and the special ids; the same for any kind of source file."""
        vocabulary = vocabulary_bytes(self.backend, mask=self.mask.text, mask_id=self.mask.id)
        return fingerprint(vocabulary, self.special_ids, special_ids=self.all_special_ids)

    @cached_property
    def _complete(self) -> "tokenizers.Tokenizer":
        """The tokenizer with every chosen token special, as it is saved."""
        return completed(self.backend, self._names, mask_id=self.mask.id)

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Name and content of the files that `save` writes; equal tokenizers have equal files."""
        config: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{f"{role}_token": self._names.roles[role] for role in ROLES if role in self._names.roles},
        }
        if self._names.extra:
            # transformers 5 calls them extra_special_tokens, and reads both; transformers 4 reads only this name.
            config["additional_special_tokens"] = list(self._names.extra)
        # Not `_complete`, which would stay in memory and is only needed for decoding.
        complete = completed(self.backend, self._names, mask_id=self.mask.id)
        content = self.form if complete is self.backend else complete.to_str(pretty=True).encode()
        own = self.own_frame
        # Ids appended to documents are not part of the post-processor.
        back = own.back if self.frame.back[: len(own.back)] == own.back else ()
        if own != Frame(self.frame.front, back):
            parsed = json.loads(content)
            parsed["post_processor"] = framing_post_processor(self.backend, front=self.frame.front, back=back)
            content = json.dumps(parsed, indent=2, ensure_ascii=False).encode()
        return {
            "tokenizer.json": content,
            "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False).encode() + b"\n",
        }

    @property
    def newly_special(self) -> list[str]:
        """Tokens that are special only in the saved files: a mask or an end that was chosen here."""
        return undeclared(self.backend, self._names.texts())

    @cached_property
    def source_digest(self) -> str:
        """SHA-256 of everything that determines the ids: the file's content, the special tokens, the library."""
        decided = (f"{self.kind}", self._digest, dict(self._names.roles), self._names.extra, self.mask.id)
        return hashlib.sha256(repr(decided).encode()).hexdigest()

    @cached_property
    def encoding_digest(self) -> str:
        """SHA-256 of what turns a text into ids, before any end is added; independent of the mask and other roles."""
        return hashlib.sha256(f"{self.kind}\n".encode() + self.form).hexdigest()

    @cached_property
    def form(self) -> bytes:
        """The backend's `tokenizer.json`. Cached, since a large vocabulary takes half a second to write."""
        return self.converted_form or self.backend.to_str(pretty=True).encode()

    def encoding(self) -> dict[str, Any]:
        """Record of how texts were encoded, as plain data: the rules, and the frame as ids."""
        return {**asdict(self.rules), "frame": asdict(self.frame)}

    def save(self, folder: Path) -> None:
        """Write a folder that `transformers.AutoTokenizer` and `tokenization.load` read.

        The chosen tokens are named in it, so that loading it makes the same choice. No pad token is invented. The
        post-processor is the one that `encode_batch` applies, and `encoding.json` records what else determined the ids.
        """
        folder.mkdir(parents=True, exist_ok=True)
        encoding = json.dumps({**self.encoding(), "source": self.source}, indent=2).encode() + b"\n"
        for name, content in {**self.files, ENCODING_FILE: encoding}.items():
            (folder / name).write_bytes(content)
