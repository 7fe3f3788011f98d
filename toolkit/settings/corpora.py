"""What a run's settings say about its corpora, checked against the corpora themselves."""

from toolkit.core.errors import NotAvailableError, SettingsError
from toolkit.data.corpus import Corpus
from toolkit.settings.run import RunSettings

__all__ = ["training_corpus", "validation_corpus", "with_corpora"]


def training_corpus(settings: RunSettings) -> Corpus:
    """Open `data.train`."""
    if not isinstance(settings.data.train, str):
        raise NotAvailableError("data.train as a list (a blend of corpora)")
    return Corpus(settings.data.train)


def validation_corpus(settings: RunSettings) -> Corpus | None:
    """Open `data.validation`, where it is set."""
    return None if settings.data.validation is None else Corpus(settings.data.validation)


def with_corpora(settings: RunSettings) -> RunSettings:
    """The settings with `model.vocab_size` filled in from the corpus, after checking that all fit together.

    Raises:
        CorpusError: if a corpus is missing or damaged.
        SettingsError: if corpora have different tokenizers, or the model's vocabulary is too small.
    """
    training, validation = training_corpus(settings), validation_corpus(settings)
    if validation is not None and validation.fingerprint != training.fingerprint:
        raise SettingsError(
            f"data.train ({training.path}) and data.validation ({validation.path}) were made with different "
            f"tokenizers: fingerprints {training.fingerprint[:12]} and {validation.fingerprint[:12]}.\n"
            "Preprocess both with the same --tokenizer."
        )
    needed, asked = training.vocabulary.size, settings.model.vocab_size
    if asked is not None and asked < needed:
        raise SettingsError(
            f"model.vocab_size={asked} is smaller than the tokenizer of {training.path}, which has {needed} ids.\n"
            "Leave model.vocab_size out to take the tokenizer's, or choose a larger one."
        )
    model = settings.model.model_copy(update={"vocab_size": asked or needed})
    return settings.model_copy(update={"model": model})
