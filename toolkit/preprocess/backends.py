"""Which backend a corpus is made with: the fast one where it is proven to give the tokenizer's own ids."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from itertools import chain
from typing import Literal

from tokenization import FastBackend, FastUnavailable, Tokenizer
from toolkit.preprocess.encoding import TokenizerBackend
from toolkit.preprocess.tokenizer_checks import Proof

# The reference backends need up to some 100 bytes of working memory a character, the fast one a few.
_REFERENCE_CHARACTERS = 1 << 19
_FAST_CHARACTERS = 8 << 20

_TRIAL_CHARACTERS = 2_000_000
# The reference encodes so much in less time than it takes to open the fast backend of a large vocabulary.
_SHORT_CHARACTERS = 1_000_000
_TRIAL_PIECE_CHARACTERS = 100_000


@dataclass(frozen=True)
class BackendChoice:
    """The backend that is used.

    Attributes:
        backend: it.
        most_characters: texts are handed to it in batches of about this size.
        why_reference: why it is the tokenizer's own; empty for the fast one.
    """

    backend: TokenizerBackend
    most_characters: int
    why_reference: str = ""

    @property
    def is_fast(self) -> bool:
        """Whether it is the fast one."""
        return not self.why_reference


def choose_backend(
    tokenizer: Tokenizer, *, engine: Literal["auto", "reference"], texts: Iterator[str]
) -> BackendChoice:
    """Take the fast backend if it equals the tokenizer's own on every vocabulary entry and on 2 MB of this input.

    For a short input it would not be worth opening.

    Args:
        tokenizer: the reference.
        engine: `auto`, or `reference` to take the tokenizer's own in any case.
        texts: the documents from the first on; read as far as needed.
    """
    if engine == "reference":
        return reference_backend(tokenizer, "asked for with --engine reference")
    pieces = _trial(texts)
    if sum(map(len, chain.from_iterable(pieces))) < min(_SHORT_CHARACTERS, _TRIAL_CHARACTERS):
        return reference_backend(tokenizer, "the text is short")
    with ThreadPoolExecutor() as pool:
        # The reference takes a second for the trial; opening the fast backend takes another, on one core.
        expected = [pool.submit(tokenizer.encode_batch, piece) for piece in pieces]
        try:
            proof = Proof(tokenizer)
            mismatched_characters = proof.read()
            fast = FastBackend.open(tokenizer, characters=mismatched_characters)
        except PackageNotFoundError as error:
            return reference_backend(tokenizer, f"{error.name} is not installed (the extra `fast`)")
        except FastUnavailable as error:
            return reference_backend(tokenizer, error.reason)
        difference = fast.check_vocabulary() if mismatched_characters is None else None
        if mismatched_characters is None and difference is None:
            proof.write(fast.mismatched_characters)
        for piece, ids in zip(pieces, expected, strict=True):
            difference = difference or fast.check(piece, expected=ids.result())
    if difference is not None:
        return reference_backend(tokenizer, f"the fast backend differs: {difference}")
    return BackendChoice(fast, _FAST_CHARACTERS)


def reference_backend(tokenizer: Tokenizer, why: str) -> BackendChoice:
    """The tokenizer's own backend, and why it is taken."""
    return BackendChoice(tokenizer, _REFERENCE_CHARACTERS, why)


def _trial(texts: Iterator[str]) -> list[list[str]]:
    """The first 2 MB of the input, in pieces for several cores."""
    pieces: list[list[str]] = [[]]
    missing = room = _TRIAL_CHARACTERS
    for text in texts:
        pieces[-1].append(text[:missing])
        missing -= len(text)
        if missing <= 0:
            break
        if missing <= room - _TRIAL_PIECE_CHARACTERS:
            pieces.append([])
            room = missing
    return pieces
