"""SentencePiece models: the library's own backend, and the Hugging Face form that gives the same ids.

Differences from `tokenizers`, besides the tables; the form handles the first three:

- SentencePiece does not pre-tokenize: a text is segmented whole, and in Llama 2 a run of spaces is a token of its own.
- Strings of control tokens (`<s>`) and of byte pieces are plain text to SentencePiece. Unigram models of `tokenizers`
  would find them in their vocabulary, so such a string is split at a point that no piece spans.
- Of merges with equal scores SentencePiece takes the leftmost; longest left part first does the same within one piece.
- SentencePiece adds scores in single precision, `tokenizers` in double precision. On texts of hundreds of kilobytes a
  unigram model may therefore choose differently: measured once in 58 million tokens.
- `tokenizers` looks up whole graphemes in a character map. If a compatibility character (a ligature, a circled digit)
  is followed by a combining mark, the mark is lost.
"""

import base64
import hashlib
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenization.comparison import check_conversion
from tokenization.errors import TokenizationError, UnsupportedTokenizerError, encoding_errors, native_errors
from tokenization.form_cache import Form, cached_form
from tokenization.formats.sentencepiece_model import (
    ModelPiece,
    ModelType,
    PieceType,
    SentencePieceModel,
    parse_model,
)
from tokenization.reference import TokenizerKind
from tokenization.special_tokens import AddedEntry, SpecialNames

if TYPE_CHECKING:
    import sentencepiece
    import tokenizers

_SPACE = "\u2581"
_ALL = 1 << 16


def from_sentencepiece(
    content: bytes, name: str, *, cache_folder: Path | None
) -> tuple[Form, SpecialNames, "SentencePieceReference"]:
    """A model's Hugging Face form, the names of its special tokens, and the library's own backend.

    Error messages call the file `name`. The form is cached in `cache_folder`, unless that is None.
    """

    def convert() -> "tokenizers.Tokenizer":
        backend, processor = _convert(content, name)
        special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
        check_conversion(name, SentencePieceReference(processor), backend, special_texts=special)
        return backend

    # The library only gets content that the conversion has checked, now or when the cached form was made.
    form = cached_form(cache_folder, {"sentencepiece": hashlib.sha256(content).hexdigest()}, convert)
    form.backend.encode_special_tokens = True
    processor = _processor(content, name)
    return form, _names(processor), SentencePieceReference(processor)


def _convert(content: bytes, name: str) -> tuple["tokenizers.Tokenizer", "sentencepiece.SentencePieceProcessor"]:
    model = parse_model(content, name)
    _refuse_unsupported(model, name)
    processor = _processor(content, name)
    if processor.GetPieceSize() != len(model.pieces):
        raise TokenizationError(f"{name}: the library reads other pieces than the file holds. Download it again.")
    with native_errors(f"{name} is not a SentencePiece model that can be read"):
        from tokenizers import Tokenizer as Backend

        backend = Backend.from_str(json.dumps(_hugging_face_form(model), ensure_ascii=False))
    backend.encode_special_tokens = True
    return backend, processor


def _processor(content: bytes, name: str) -> "sentencepiece.SentencePieceProcessor":
    with native_errors(f"{name} is not a SentencePiece model that can be read"):
        from sentencepiece import SentencePieceProcessor

        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(content)
    return processor


class SentencePieceReference:
    """Encodes with the SentencePiece library, without its begin and end tokens."""

    kind = TokenizerKind.SENTENCEPIECE

    def __init__(self, processor: "sentencepiece.SentencePieceProcessor") -> None:
        self._processor = processor
        # Versions before 0.2.2 return only Python lists.
        has_buffers = "return_type" in inspect.signature(processor.Encode).parameters
        self._options = {"return_type": "numpy"} if has_buffers else {"out_type": int}

    def encode(self, texts: Sequence[str]) -> Iterator[npt.NDArray[np.uint32]]:
        """The ids of each text."""
        for text in texts:
            with encoding_errors():
                ids = self._processor.Encode(text, **self._options)
            yield np.asarray(ids, dtype=np.int32).view(np.uint32)


def _names(processor: "sentencepiece.SentencePieceProcessor") -> SpecialNames:
    """Special tokens by role, from the model's own trainer spec; an id of -1 means none."""
    ids = {role: getattr(processor, f"{role}_id")() for role in ("bos", "eos", "unk", "pad")}
    size = processor.GetPieceSize()
    return SpecialNames({role: processor.IdToPiece(id_) for role, id_ in ids.items() if 0 <= id_ < size})


def _refuse_unsupported(model: SentencePieceModel, name: str) -> None:
    types = {piece.type for piece in model.pieces}
    what = None
    if model.type not in (ModelType.UNIGRAM, ModelType.BPE):
        what = f"cuts text into {model.type.name.lower()}s"
    elif model.treat_whitespace_as_suffix:
        what = "writes spaces after words"
    elif not model.escape_whitespaces:
        what = "leaves spaces as they are"
    elif PieceType.UNUSED in types:
        what = "has pieces that are marked as unused"
    elif PieceType.USER_DEFINED in types and model.type is ModelType.BPE and model.add_dummy_prefix:
        what = "has user-defined symbols and puts a space in front of text"
    elif model.type is ModelType.BPE and (pair := _overlapping_equals(model)):
        what = "has overlapping pieces of equal score, as vocabularies that were merged have ({!r}, {!r})".format(*pair)
    if what is not None:
        raise UnsupportedTokenizerError(
            f"{name} is a SentencePiece model that {what}; no tokenizer.json gives the same ids, and a corpus keeps "
            "one. Train a model without that, or give a tokenizer.json."
        )


def _hugging_face_form(model: SentencePieceModel) -> dict[str, Any]:
    special = (PieceType.CONTROL, PieceType.UNKNOWN)
    is_unigram = model.type is ModelType.UNIGRAM
    added = [
        # User-defined symbols are matched in the normalized text, with spaces escaped.
        asdict(AddedEntry(number, piece.text, special=piece.type in special, normalized=piece.type not in special))
        for number, piece in enumerate(model.pieces)
        if piece.type in special or (piece.type is PieceType.USER_DEFINED and not is_unigram)
    ]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        *([{"type": "ByteFallback"}] if model.byte_fallback else []),
        {"type": "Fuse"},
    ]
    if model.remove_extra_whitespaces or model.add_dummy_prefix:
        num_spaces = _ALL if model.remove_extra_whitespaces else 1
        decoders.append({"type": "Strip", "content": " ", "start": num_spaces, "stop": 0})
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": _literal_cuts(model.pieces) if is_unigram else None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _unigram(model) if is_unigram else _bpe(model),
    }


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if model.add_dummy_prefix and not model.remove_extra_whitespaces:
        # First step: a text that the character map empties keeps the space.
        steps.append({"type": "Prepend", "prepend": " "})
    if model.charsmap:
        from tokenizers.normalizers import Precompiled

        # `tokenizers` looks up a two-character line end once: it would map the first character and drop the second.
        line_end = "".join(map(Precompiled(model.charsmap).normalize_str, "\r\n"))
        if line_end != "\r\n":
            steps.append({"type": "Replace", "pattern": {"String": "\r\n"}, "content": line_end})
        charsmap = base64.b64encode(model.charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.remove_extra_whitespaces:
        # Only U+0020, no other white space: a line end stays as the character map left it.
        steps.append(_replace(r"\A +| +\z", ""))
        steps.append(_replace(" {2,}", " "))
        if model.add_dummy_prefix:
            steps.append({"type": "Prepend", "prepend": _SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    if model.remove_extra_whitespaces:
        # The library strips the end again after escaping spaces, including any U+2581 of the text itself.
        steps.append(_replace(_SPACE + r"+\z", ""))
    return steps


def _replace(expression: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": expression}, "content": content}


def _bpe(model: SentencePieceModel) -> dict[str, Any]:
    merges = sorted(_merges(model), key=lambda merge: (-merge[0], -len(merge[1])))
    return {
        "type": "BPE",
        "unk_token": next(piece.text for piece in model.pieces if piece.type is PieceType.UNKNOWN),
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "vocab": {piece.text: number for number, piece in enumerate(model.pieces)},
        "merges": [[left, right] for _, left, right in merges],
    }


def _merges(model: SentencePieceModel) -> Iterator[tuple[float, str, str]]:
    """Every way to make an ordinary piece from two others: its score, and the two."""
    scores = {piece.text: piece.score for piece in model.pieces if piece.type is PieceType.NORMAL}
    for text, score in scores.items():
        for cut in range(1, len(text)):
            if text[:cut] in scores and text[cut:] in scores:
                yield score, text[:cut], text[cut:]


def _overlapping_equals(model: SentencePieceModel) -> tuple[str, str] | None:
    """Two pieces of equal score that can overlap, the end of one being the beginning of the other; None if absent.

    SentencePiece merges the leftmost one, `tokenizers` the one that comes first in its list. In a run of one character,
    such as the spaces of Llama 2, longest left part first gives the same result.
    """
    by_left, by_right = defaultdict[tuple[float, str], set[str]](set), defaultdict[tuple[float, str], set[str]](set)
    for score, left, right in _merges(model):
        by_left[score, left].add(left + right)
        by_right[score, right].add(left + right)
    pairs = ((one, other) for key in by_left.keys() & by_right for one in by_right[key] for other in by_left[key])
    return min((pair for pair in pairs if pair[0] != pair[1] and len({*pair[0], *pair[1]}) > 1), default=None)


def _unigram(model: SentencePieceModel) -> dict[str, Any]:
    best = max((piece.score for piece in model.pieces if piece.type is PieceType.NORMAL), default=0.0)
    return {
        "type": "Unigram",
        "unk_id": next(number for number, piece in enumerate(model.pieces) if piece.type is PieceType.UNKNOWN),
        "vocab": [[piece.text, _unigram_score(piece, best)] for piece in model.pieces],
        "byte_fallback": model.byte_fallback,
    }


def _unigram_score(piece: ModelPiece, best: float) -> float:
    """Score of a piece; a user-defined symbol beats any segmentation of it."""
    if piece.type is PieceType.USER_DEFINED:
        return len(piece.text.encode("utf-8")) * best - 0.1
    return piece.score


def _literal_cuts(pieces: Sequence[ModelPiece]) -> dict[str, Any] | None:
    """Pre-tokenizer that splits mere look-alikes of pieces, at points that no piece spans; None if not needed."""
    ordinary = {piece.text for piece in pieces if piece.type in (PieceType.NORMAL, PieceType.USER_DEFINED)}
    pairs = {text[start : start + 2] for text in ordinary for start in range(len(text) - 1)}

    def is_free(pair: str) -> bool:
        """True if no piece contains the pair, and it is not inside a run of unknown characters, which is one token."""
        return pair not in pairs and not ordinary.isdisjoint(pair)

    rests: dict[str, list[str]] = {}
    for piece in pieces:
        if piece.text in ordinary:
            continue
        cuts = (cut for cut in range(1, len(piece.text)) if is_free(piece.text[cut - 1 : cut + 1]))
        cut = next(cuts, None)
        if cut is not None:
            rests.setdefault(piece.text[:cut], []).append(piece.text[cut:])
    if not rests:
        return None
    expression = "|".join(
        f"{_escaped(start)}(?={'|'.join(map(_escaped, sorted(ends)))})" for start, ends in sorted(rests.items())
    )
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "MergedWithPrevious", "invert": False}


def _escaped(text: str) -> str:
    return re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", text)
