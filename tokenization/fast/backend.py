"""The fast batch backend, gigatoken: its output is identical to the reference's, or an error is raised.

Three checks against the reference: every vocabulary entry (`check_vocabulary`), texts of the caller's choice (`check`),
and one document in 1,000 during encoding, chosen by a hash, so that the same documents are compared in every run, with
any number of threads. Texts that gigatoken is known to encode differently, or that contain bytes without a token, go
to the reference.
"""

import os
import threading
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from tokenization.backend import byte_level_bytes, is_byte_level
from tokenization.comparison import differences, first_difference, hashes_of
from tokenization.errors import (
    BackendsDiffer,
    Difference,
    FastUnavailable,
    TokenizationError,
    encoding_errors,
    native_errors,
)
from tokenization.fast.form import (
    FallbackTexts,
    added_tokens,
    fast_form,
    missing_bytes,
    numerals_for_reference,
    sample_characters,
)
from tokenization.reference import Ids, Lengths, release_freed_memory
from tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    import gigatoken

_ONE_IN = 1000

# gigatoken 0.10 caches every word it has seen and never evicts one. When the process has grown by this many bytes,
# even after returning freed memory, gigatoken is restarted, which takes 0.5 s with Llama 3's vocabulary.
_MAX_GROWTH = 128 << 20

_MAX_MISMATCHED = 1000
_GROUP = 256


class FastBackend:
    """Encodes like `tokenizer.encode_batch`, but many times faster; made by `FastBackend.open`.

    Safe to call from several threads. gigatoken itself spreads a call over the cores, which share one vocabulary;
    single-threaded, it would serve one caller at a time. Texts that contain one of `mismatched_characters`, on which
    the two backends disagree, go to the reference.
    """

    def __init__(
        self, tokenizer: Tokenizer, content: bytes, fallback_texts: FallbackTexts, num_threads: int | None = None
    ) -> None:
        self._is_shared = num_threads != 1
        self._tokenizer, self._content, self._fallback_texts = tokenizer, content, fallback_texts
        self.mismatched_characters: Sequence[str] = ()
        self._renewal = threading.Lock()
        self._gigatoken = _build(content)
        self._first_resident = _resident_bytes()
        self._frame = tokenizer.frame

    @classmethod
    def open(
        cls, tokenizer: Tokenizer, *, characters: Iterable[str] | None = None, num_threads: int | None = None
    ) -> "FastBackend":
        """Open the fast backend of a tokenizer and find out which texts it supports.

        Args:
            characters: characters on which to compare the two backends; by default a sample of Unicode, which takes one
                to three seconds.
            num_threads: number of threads that call it; None: any number. With 1, gigatoken starts no threads of its
                own, which cost two processes on two cores 6 % of their time.

        Raises:
            FastUnavailable: gigatoken is missing, does not support this kind of vocabulary, or differs too often.
            TokenizationError: there is no end-of-document token.
        """
        content = fast_form(tokenizer)
        special, plain = added_tokens(tokenizer)
        backend = cls(tokenizer, content, FallbackTexts(special, []), num_threads)
        strings = [*special, *(text for text in plain if backend.check([text, f"a{text}b {text}{text} "]) is not None)]
        numerals = numerals_for_reference(tokenizer)
        looked_at = sample_characters() if characters is None else characters
        backend.mismatched_characters = backend._mismatched(each for each in looked_at if each not in numerals)
        backend._fallback_texts = FallbackTexts(strings, [*backend.mismatched_characters, *numerals])
        release_freed_memory()
        backend._first_resident = _resident_bytes()
        return backend

    def check_vocabulary(self) -> Difference | None:
        """Compare with the reference on the text of every vocabulary entry, including added tokens."""
        backend = self._tokenizer.backend
        is_spelled = is_byte_level(backend)
        texts = []
        for entry in backend.get_vocab(with_added_tokens=True):
            try:
                texts.append(byte_level_bytes(entry).decode("utf-8") if is_spelled else entry)
            except UnicodeDecodeError:
                continue  # part of a character: no text consists of this entry only
        if not is_spelled:
            texts += [text.replace("\u2581", " ") for text in texts]
        difference = self.check(texts)
        release_freed_memory()
        return difference

    def check(self, texts: Sequence[str], *, expected: tuple[Ids, Lengths] | None = None) -> Difference | None:
        """Compare with the reference; None if all ids are equal. `expected`: the reference's encoding, if known."""
        if expected is None:
            expected = self._tokenizer.encode_batch(texts)
        try:
            return first_difference(texts, expected, self._encode(texts))
        except BackendsDiffer as error:
            return error.difference

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        """Encode texts; same result as `Tokenizer.encode_batch`.

        Raise `BackendsDiffer` if the ids of a sampled document differ from the reference's, or gigatoken crashes.
        """
        found = self._encode(texts)
        chosen = np.flatnonzero(hashes_of(found) % _ONE_IN == 0).tolist()
        if chosen:
            some = [texts[number] for number in chosen]
            difference = first_difference(some, self._tokenizer.encode_batch(some), _select(found, chosen))
            if difference is not None:
                raise BackendsDiffer(difference)
        self._renew_if_grown()
        return found

    def _encode(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        is_own = np.fromiter(map(self._fallback_texts.holds, texts), dtype=bool, count=len(texts))
        ids, sizes = self._raw(list(compress(texts, ~is_own)))
        if (is_stand_in := ids >= self._tokenizer.encoded_vocabulary_size).any():
            num_before, ends = np.concatenate([[0], np.cumsum(is_stand_in)]), np.cumsum(sizes)
            has_stand_in = num_before[ends] > num_before[ends - sizes]
            ids, sizes = ids[np.repeat(~has_stand_in, sizes)], sizes[~has_stand_in]
            is_own[~is_own] = has_stand_in
        found = self._framed(ids, sizes)
        if not is_own.any():
            return found
        return _interleaved(found, self._tokenizer.encode_batch(list(compress(texts, is_own))), is_own)

    def _raw(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        """The ids from gigatoken for the texts, as views of its own buffers."""
        try:
            with encoding_errors():
                rows = self._gigatoken.encode_batch(list(texts), parallel=self._is_shared).layout
        except TokenizationError as error:
            if isinstance(error.__cause__, Exception):
                raise
            broken = next((text for text in texts if self._breaks(text)), "".join(texts))
            raise BackendsDiffer(Difference(broken, 0, (), (), note=f"it broke down: {error.__cause__}")) from error
        offsets = np.asarray(rows.offsets.data)
        ids: Ids = np.asarray(rows.content.data)[offsets[0] : offsets[-1]]
        return ids, np.diff(offsets)

    def _breaks(self, text: str) -> bool:
        try:
            with native_errors(""):
                self._gigatoken.encode_batch([text])
        except TokenizationError:
            return True
        return False

    def _framed(self, ids: Ids, sizes: Lengths) -> tuple[Ids, Lengths]:
        """Add the tokenizer's frame, with the end of the document, around every text that has ids."""
        front, back = self._frame.front, self._frame.back
        if not front and not back:
            return ids, sizes
        is_kept = sizes > 0
        ends = np.cumsum(sizes)[is_kept]
        places = np.empty((ends.size, len(front) + len(back)), dtype=np.int64)
        places[:, : len(front)] = (ends - sizes[is_kept])[:, None]
        places[:, len(front) :] = ends[:, None]
        values = np.tile(np.array([*front, *back], dtype=np.uint32), ends.size)
        lengths = np.where(is_kept, sizes + places.shape[1], 0)
        return np.insert(ids, places.ravel(), values), lengths

    def _mismatched(self, characters: Iterable[str]) -> list[str]:
        """Characters next to which the two backends disagree, since their versions of Unicode differ."""
        # A character that the vocabulary lacks would send the whole text to the reference.
        missing = frozenset(missing_bytes(self._tokenizer))
        looked_at = [each for each in characters if missing.isdisjoint(each.encode())]
        groups = [looked_at[start : start + _GROUP] for start in range(0, len(looked_at), _GROUP)]
        suspects = self._differing(["".join(map(_contexts, group)) for group in groups])
        some = [character for number in suspects for character in groups[number]]
        odd = [some[number] for number in self._differing([_contexts(character) for character in some])]
        if len(odd) > _MAX_MISMATCHED or (suspects and not odd):
            raise FastUnavailable("it differs on too many characters")
        return odd

    def _differing(self, texts: Sequence[str]) -> list[int]:
        found = differences(self._tokenizer.encode_batch(texts), self._encode(texts))
        return [number for number, _, _ in found]

    def _renew_if_grown(self) -> None:
        """Return freed memory to the system; if that is not enough, restart gigatoken."""
        if _resident_bytes() - self._first_resident < _MAX_GROWTH or not self._renewal.acquire(blocking=False):
            return
        try:
            release_freed_memory()
            if _resident_bytes() - self._first_resident >= _MAX_GROWTH:
                self._gigatoken = _build(self._content)
                release_freed_memory()
                self._first_resident = _resident_bytes()
        finally:
            self._renewal.release()


def _build(content: bytes) -> "gigatoken.Tokenizer":
    try:
        # gigatoken imports it with its first result, and treats any exception meanwhile, even Ctrl-C, as its absence.
        import awkward  # noqa: F401
        import gigatoken
    except ImportError as error:
        raise FastUnavailable(f"gigatoken is not installed whole: {error} (pip install gigatoken)") from error
    try:
        with native_errors("gigatoken cannot read this tokenizer"):
            return gigatoken.Tokenizer.from_json(content)
    except TokenizationError as error:
        raise FastUnavailable(str(error).rstrip(".")) from error


def _resident_bytes() -> int:
    """Resident set size in bytes; 0 if the system has no /proc/self/statm."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _contexts(character: str) -> str:
    """Text with the character next to a letter, a digit, a sign and itself."""
    return f"a{character}1{character}{character} {character}.\n{character}\n"


def _select(encoded: tuple[Ids, Lengths], chosen: Sequence[int]) -> tuple[Ids, Lengths]:
    ids, lengths = encoded
    ends = np.cumsum(lengths)
    parts = [ids[ends[number] - lengths[number] : ends[number]] for number in chosen]
    return np.concatenate(parts), lengths[list(chosen)]


def _interleaved(first: tuple[Ids, Lengths], second: tuple[Ids, Lengths], is_second: np.ndarray) -> tuple[Ids, Lengths]:
    """Merge two encodings; `is_second` flags the texts that come from the second."""
    lengths = np.empty(is_second.size, dtype=np.int64)
    lengths[~is_second], lengths[is_second] = first[1], second[1]
    ids = np.empty(int(lengths.sum()), dtype=np.uint32)
    is_second_id = np.repeat(is_second, lengths)
    ids[~is_second_id], ids[is_second_id] = first[0], second[0]
    return ids, lengths
