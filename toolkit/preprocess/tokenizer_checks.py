"""Checks of a tokenizer before a corpus is made with it: whether the fast backend and transformers give its ids.

Results are kept in the cache folder, so that each check is made only once. They depend on the tokenizer's content and
on the library versions, and are rebuilt if either changes. A cache folder that cannot be written only costs time.
"""

import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from tokenization import CannotEncode, FastBackend, FastUnavailable, Tokenizer
from tokenization.comparison import transformers_differences
from tokenization.special_tokens import CONFIGURATION_FILES, ROLES
from toolkit.core.cache import CachedResult
from toolkit.core.errors import UserError
from toolkit.preprocess.encoding import TokenizerBackend

_TRIAL_CHARACTERS = 2_000_000
# The reference encodes this much in less time than it takes to open the fast backend of a large vocabulary.
_SHORT_CHARACTERS = 1_000_000
_NUM_PIECES = 20
# End-of-document tokens in pretraining; if a vocabulary has two, the first is suggested.
_PRETRAINING_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


@dataclass(frozen=True)
class BackendChoice:
    """Backend, and why it is the tokenizer's own; empty for the fast one."""

    backend: TokenizerBackend
    why_reference: str = ""


def choose_backend(
    tokenizer: Tokenizer, *, engine: Literal["auto", "reference"], texts: Iterator[str], num_threads: int | None
) -> BackendChoice:
    """Take the fast backend if it equals the tokenizer's own on every vocabulary entry and 2 million input characters.

    For a short input it is not worth opening. `texts` are the documents from the first on, read as far as needed;
    `num_threads` is the number of threads that will call the backend; None: any number.
    """
    if engine == "reference":
        return BackendChoice(tokenizer, "asked for with --engine reference")
    trial = list(_trial(texts))
    if sum(map(len, trial)) < min(_SHORT_CHARACTERS, _TRIAL_CHARACTERS):
        return BackendChoice(tokenizer, "the text is short")
    pieces = [trial[start::_NUM_PIECES] for start in range(min(_NUM_PIECES, len(trial)))]  # for multiple cores
    with ThreadPoolExecutor() as pool:
        # The reference takes a second for the trial; opening the fast backend takes another, on one core.
        expected = [pool.submit(tokenizer.encode_batch, piece) for piece in pieces]
        try:
            proof = proof_of(tokenizer)
            mismatched_characters = proof.read()
            fast = FastBackend.open(tokenizer, characters=mismatched_characters, num_threads=num_threads)
        except PackageNotFoundError as error:
            return BackendChoice(tokenizer, f"{error.name} is not installed (the extra `fast`)")
        except FastUnavailable as error:
            return BackendChoice(tokenizer, error.reason)
        difference = fast.check_vocabulary() if mismatched_characters is None else None
        if mismatched_characters is None and difference is None:
            proof.write(list(fast.mismatched_characters))
        try:
            for piece, ids in zip(pieces, expected, strict=True):
                difference = difference or fast.check(piece, expected=ids.result())
        except CannotEncode:
            return BackendChoice(tokenizer, "it cannot write every text")
    if difference is not None:
        return BackendChoice(tokenizer, f"the fast backend differs: {difference}")
    return BackendChoice(fast)


def open_backend(tokenizer: Tokenizer, *, why_reference: str, num_threads: int | None) -> BackendChoice:
    """The backend that `choose_backend` took, perhaps on another machine; UserError if this machine lacks it."""
    if why_reference:
        return BackendChoice(tokenizer, why_reference)
    try:
        characters = proof_of(tokenizer).read()
        return BackendChoice(FastBackend.open(tokenizer, characters=characters, num_threads=num_threads))
    except (FastUnavailable, PackageNotFoundError) as error:
        raise UserError(
            f"this corpus is made with the fast backend, which {socket.gethostname()} has not: {error}. Install the "
            "same packages as on the machine where it was started, or start over with --engine reference."
        ) from error


def _trial(texts: Iterator[str]) -> Iterator[str]:
    """The first 2 million characters of the input."""
    missing = _TRIAL_CHARACTERS
    for text in texts:
        yield text[:missing]
        missing -= len(text)
        if missing <= 0:
            return


def proof_of(tokenizer: Tokenizer) -> CachedResult:
    """Cached proof that the fast backend gave the tokenizer's own ids on the text of every vocabulary entry.

    Its value is the Unicode characters on which the two disagree. Agreement on the input is checked for every input.
    """
    libraries = ("gigatoken", "tokenizers", "tiktoken", "sentencepiece")
    return CachedResult(
        "fast-backend",
        {
            "tokenizer": tokenizer.source_digest,
            "parse_special_text": tokenizer.rules.parse_special_text,
            "libraries": [version(library) for library in libraries],
        },
    )


def ids_that_differ_in_transformers(tokenizer: Tokenizer) -> list[str]:
    """Differences from the ids of `AutoTokenizer`, and thus of Megatron-LM; one sentence each.

    Nothing is compared if there is no configuration beside the vocabulary, or one that changes nothing: the generic
    class of transformers with only names of special tokens, as the toolkit writes it.
    """
    folder = tokenizer.folder
    if folder is None:
        return []
    configurations = {name: folder / name for name in (*CONFIGURATION_FILES, "config.json")}
    contents = {name: path.read_text("utf-8", "replace") for name, path in configurations.items() if path.is_file()}
    if not contents or _changes_nothing(contents):
        return []
    cached = CachedResult(
        "transformers-ids",
        {"tokenizer": tokenizer.source_digest, "files": contents, "transformers": version("transformers")},
    )
    differences: list[str] | None = cached.read()
    if differences is None:
        backend = tokenizer.backend
        differences = transformers_differences(
            folder, encode=lambda text: backend.encode(text).ids, ids=backend.get_vocab(with_added_tokens=True)
        )
        cached.write(differences)
    return differences


def mask_notes(tokenizer: Tokenizer) -> list[str]:
    """Notes on the chosen mask token, one or two sentences each."""
    found, mask = [], tokenizer.mask
    if mask.passed_over is not None:
        found.append(
            f"The vocabulary has {mask.passed_over!r}, which no configuration file names as its mask. To mask with it, "
            f"run again with --mask-token token:{mask.passed_over}."
        )
    if tokenizer.is_mask_ordinary:
        found.append(
            f"The mask token {mask.text!r} (id {mask.id}) is an ordinary token, which texts contain. Exported "
            "tokenizers parse it as the mask everywhere: choose a special or reserved token, or --mask-token auto."
        )
    return found


def end_notes(tokenizer: Tokenizer) -> list[str]:
    """A note if documents end with a chat model's end-of-turn token although the vocabulary has a pretraining end."""
    vocabulary = tokenizer.backend.get_added_tokens_decoder().values()
    specials = {token.content for token in vocabulary if token.special}
    others = [end for end in _PRETRAINING_ENDS if end in specials]
    if not tokenizer.rules.add_eod or tokenizer.is_eod_given or not others or tokenizer.eod_text in _PRETRAINING_ENDS:
        return []
    return [
        f"Documents end with {tokenizer.eod_text}, which the configuration names as eos. Chat models name the end of a "
        f"turn there, and were pretrained with another one: to end documents with it, --eod '{others[0]}'."
    ]


def _changes_nothing(contents: Mapping[str, str]) -> bool:
    names = {f"{role}_token" for role in ROLES} | {"additional_special_tokens", "extra_special_tokens"}
    known = {"tokenizer_class", "clean_up_tokenization_spaces", *names}
    config = json.loads(contents.get("tokenizer_config.json", "{}"))
    is_general = config.get("tokenizer_class") == "PreTrainedTokenizerFast"
    return set(contents) == {"tokenizer_config.json"} and is_general and set(config) <= known
