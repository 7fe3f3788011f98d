"""Checks of a run that no settings group can make by itself, grouped by what they need: a UserError says what is wrong
and what to do. Whether a run may resume, or start from given weights, is checked by `Continuation`.
"""

from collections.abc import Mapping, Set
from importlib.util import find_spec
from typing import Any

from toolkit.core.errors import CorpusError, SettingsError, UserError
from toolkit.engine.ds_config import check_parallel, zero_stage
from toolkit.parallel.division import check_pipeline_parallel, check_tensor_parallel
from toolkit.run.corpora import RunCorpora
from toolkit.run.settings import RunSettings


def mistakes_in(settings: RunSettings, *, wrong: Set[str] = frozenset()) -> list[UserError]:
    """Contradictions between groups of settings, ignoring groups in `wrong`, which are invalid by themselves."""
    found = []
    for groups, check in (
        ({"eval", "data", "checkpoint"}, _check_evaluation),
        ({"data", "objectives"}, _check_validation_names),
        ({"train", "parallel"}, _check_spikes),
    ):
        try:
            if not wrong & groups:
                check(settings)
        except UserError as error:
            found.append(error)
    return found


def check_corpora(settings: RunSettings, corpora: RunCorpora) -> None:
    """Refuse opened corpora that do not match each other or the settings."""
    for check in (_check_tokenizers, _check_frames, _check_vocabulary, _check_tokenizer_folder):
        check(settings, corpora)


def check_division(settings: RunSettings, ds_config: Mapping[str, Any], source: str) -> None:
    """Refuse settings that do not match a DeepSpeed file, given by its content and its name in messages."""
    check_parallel(ds_config, settings.parallel, source=source)
    check_tensor_parallel(settings.model, settings.parallel.tp)
    check_pipeline_parallel(settings.model, settings.parallel)
    _check_recomputation(settings, ds_config, source)


def _check_evaluation(settings: RunSettings) -> None:
    every, best = settings.eval.every, settings.checkpoint.keep_best
    for key, asked in (("eval.every", every), ("checkpoint.keep_best", best or None)):
        if asked is not None and settings.data.validation is None:
            raise SettingsError(
                f"{key}={_shown(asked)} asks for validation losses, but data.validation is not set.\n"
                f"Set data.validation to a corpus folder, or leave {key} out."
            )


def check_best(settings: RunSettings, evaluated: Set[str]) -> None:
    """Refuse `checkpoint.keep_best` by an objective that is not evaluated."""
    if (name := settings.best_by) is not None and name not in evaluated:
        raise SettingsError(
            f"checkpoint.keep_best={_shown(settings.checkpoint.keep_best)}: {name} has no validation loss of its own.\n"
            f"Name one of: {', '.join(sorted(evaluated))}."
        )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _check_validation_names(settings: RunSettings) -> None:
    for name in settings.data.validation_folders:
        if name in {"clm", "mlm", *settings.objectives}:
            raise SettingsError(
                f"data.validation.{name}: eval_loss has the losses of the objective {name!r} under that name.\n"
                "Give the corpus another name."
            )


def _check_spikes(settings: RunSettings) -> None:
    if settings.train.on_spike == "skip" and settings.parallel.pp > 1:
        raise SettingsError(
            f'train.on_spike="skip" cannot run with parallel.pp={settings.parallel.pp}: a pipeline updates the weights '
            'before the loss is known.\nSet train.on_spike="stop" or "tell", or parallel.pp=1.'
        )


def check_wandb(settings: RunSettings) -> None:
    """Refuse `log.wandb` if the package is not installed; it is not imported."""
    wanted = settings.log.wandb
    if wanted and find_spec("wandb") is None:
        raise SettingsError(
            f"log.wandb = {_shown(wanted)} asks for Weights & Biases, and its package is not installed.\n"
            "Install it (pip install wandb), or leave log.wandb out: metrics.jsonl and TensorBoard have the same "
            "numbers."
        )


def _check_tokenizers(settings: RunSettings, corpora: RunCorpora) -> None:
    first, *others = corpora.named
    for other in others:
        if other.corpus.fingerprint != first.corpus.fingerprint:
            raise SettingsError(
                f"{first.key} ({first.corpus.place}) and {other.key} ({other.corpus.place}) were made with different "
                f"tokenizers: fingerprints {first.corpus.fingerprint[:12]} and {other.corpus.fingerprint[:12]}.\n"
                "Preprocess both with the same --tokenizer."
            )


def _check_frames(settings: RunSettings, corpora: RunCorpora) -> None:
    """Refuse corpora with different ids around their documents; corpora without a record of these are not compared."""
    frames = []
    for named in corpora.named:
        encoding = named.corpus.manifest.tokenizer.encoding
        if encoding is not None and encoding.frame is not None:
            frames.append((named, encoding.frame))
    for named, frame in frames[1:]:
        first, expected = frames[0]
        if frame != expected:
            raise SettingsError(
                f"the documents of {first.key} ({first.corpus.place}) have {expected}, and those of {named.key} "
                f"({named.corpus.place}) have {frame}: a model learns one beginning and end, which exports then use.\n"
                "Preprocess both with the same --eod, --no-eod and --no-bos."
            )


def _check_vocabulary(settings: RunSettings, corpora: RunCorpora) -> None:
    corpus, asked = corpora.first.corpus, settings.model.vocab_size
    needed = corpus.vocabulary.size
    if asked is not None and asked < needed:
        raise SettingsError(
            f"model.vocab_size={asked} is smaller than the tokenizer of {corpus.place}, which has {needed} ids.\n"
            "Leave model.vocab_size out to take the tokenizer's, or choose a larger one."
        )


def _check_tokenizer_folder(settings: RunSettings, corpora: RunCorpora) -> None:
    first = corpora.first
    if not first.corpus.tokenizer_folder.is_dir():
        raise CorpusError(
            f"{first.key} ({first.corpus.place}) has no folder tokenizer/, which every checkpoint gets a copy of.\n"
            "Copy the corpus again, with that folder."
        )


def _check_recomputation(settings: RunSettings, ds_config: Mapping[str, Any], source: str) -> None:
    """Refuse compiled selective recomputation at stage 3: DeepSpeed gathers weights inside blocks and breaks graphs."""
    numbers = settings.train
    if numbers.compile and numbers.activation_checkpointing == "selective" and zero_stage(ds_config) == 3:
        raise SettingsError(
            'train.activation_checkpointing="selective" cannot run with train.compile=true and ZeRO stage 3 '
            f"({source}).\n"
            'Set one of them to another value: train.activation_checkpointing="full", train.compile=false, or a file '
            "with stage 2 (ds_configs/zero2.json)."
        )
