"""What a run's settings say about its corpora, checked against the corpora themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.core.errors import SettingsError
from toolkit.data import Corpus
from toolkit.run.settings import RunSettings


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus of a run.

    Attributes:
        key: the setting that names it.
        corpus: what it names.
        weight: its share of the rows, relative to the other corpora of the blend.
    """

    key: str
    corpus: Corpus
    weight: float = 1.0


def open_training(settings: RunSettings) -> tuple[NamedCorpus, ...]:
    """Open the corpora of `data.train`: one, or those of a blend.

    Raises:
        CorpusError: a corpus is missing or damaged.
        SettingsError: a blend names one folder twice.
    """
    train = settings.data.train
    if isinstance(train, str):
        return (NamedCorpus("data.train", Corpus(train)),)
    named: dict[Path, str] = {}
    for number, entry in enumerate(train):
        key = f"data.train.{number}.path"
        first = named.setdefault(Path(entry.path).resolve(), key)
        if first != key:
            raise SettingsError(
                f"{first} and {key} both name {entry.path}: a blend takes a corpus once.\n"
                "Leave one entry out and give the other the sum of their weights."
            )
    return tuple(
        NamedCorpus(key, Corpus(entry.path), entry.weight) for key, entry in zip(named.values(), train, strict=True)
    )


def open_validation(settings: RunSettings) -> NamedCorpus | None:
    """Open `data.validation`, where it is set."""
    path = settings.data.validation
    return None if path is None else NamedCorpus("data.validation", Corpus(path))


def with_corpora(settings: RunSettings) -> RunSettings:
    """The settings with `model.vocab_size` filled in from the corpora, after checking that all fit together.

    Raises:
        CorpusError: if a corpus is missing or damaged.
        SettingsError: if corpora have different tokenizers, or the model's vocabulary is too small.
    """
    training, validation = open_training(settings), open_validation(settings)
    return with_vocabulary(settings, [*training, *([validation] if validation else [])])


def with_vocabulary(settings: RunSettings, corpora: Sequence[NamedCorpus]) -> RunSettings:
    """As `with_corpora`, for corpora that are open.

    Raises:
        SettingsError: if corpora have different tokenizers, or the model's vocabulary is too small.
    """
    first, *others = corpora
    for other in others:
        if other.corpus.fingerprint != first.corpus.fingerprint:
            raise SettingsError(
                f"{first.key} ({first.corpus.path}) and {other.key} ({other.corpus.path}) were made with different "
                f"tokenizers: fingerprints {first.corpus.fingerprint[:12]} and {other.corpus.fingerprint[:12]}.\n"
                "Preprocess both with the same --tokenizer."
            )
    needed, asked = first.corpus.vocabulary.size, settings.model.vocab_size
    if asked is not None and asked < needed:
        raise SettingsError(
            f"model.vocab_size={asked} is smaller than the tokenizer of {first.corpus.path}, which has {needed} ids.\n"
            "Leave model.vocab_size out to take the tokenizer's, or choose a larger one."
        )
    model = settings.model.model_copy(update={"vocab_size": asked or needed})
    return settings.model_copy(update={"model": model})
