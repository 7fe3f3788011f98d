"""`[init]`: a run that starts from weights that are there already.

They bring the shape of the model, and their tokenizer is the one that the corpora must have. Once the run has a
checkpoint of its own it goes on from that one, and where the first weights lie, or whether they still do, is no matter.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER, step_folders
from toolkit.checkpoint.manifest import MANIFEST_NAME, CheckpointManifest, read_manifest
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.core.text import home_hint
from toolkit.data import Corpus
from toolkit.model.config import ModelSettings
from toolkit.run.resume import check_corpora, check_resume, check_weights, other_positions
from toolkit.run.settings import RunSettings

_WHAT_TO_GIVE = (
    "Give a folder that `toolkit convert --from-hf` wrote, a checkpoint "
    f"(RUN_DIR/{CHECKPOINTS_FOLDER}/step-NNNNNNNN), or a run folder."
)


def bring_model(raw: dict[str, Any]) -> None:
    """Fill in what `[model]` leaves out from the model that `init.from` names; keys that are given win.

    Defaults would not do even where every size is given: rotary angles are no part of the weights' shapes, so that
    other ones would be another model without any sign of it.

    Raises:
        CheckpointError: there is no checkpoint at `init.from`, or it does not describe a model.
        SettingsError: `init.from` is no text.
    """
    init, run = raw.get("init"), raw.get("run")
    given = raw.get("model", {})
    if not isinstance(init, dict) or not isinstance(given, dict) or "from" not in init:
        return
    source = init["from"]
    if not isinstance(source, str) or not source:
        raise SettingsError(f"init.from = {source!r}: {_WHAT_TO_GIVE}")
    folder = run.get("dir") if isinstance(run, dict) else None
    try:
        own = _newest_manifest(Path(folder)) if isinstance(folder, str) else None
        manifest = own or initial_manifest(source)
    except CheckpointError:
        required = {name for name, field in ModelSettings.model_fields.items() if field.is_required()}
        if required <= given.keys():
            # The settings can be looked at without the weights; the run itself asks for them again.
            return
        raise
    model = manifest.settings.get("model")
    if not isinstance(model, dict):
        raise CheckpointError(
            f"init.from={source}: the manifest there does not describe a model. Give another checkpoint, or the shape "
            "in [model]."
        )
    raw["model"] = {key: value for key, value in model.items() if value is not None} | given


def initial_manifest(source: str) -> CheckpointManifest:
    """The manifest of the checkpoint that `init.from` names.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    path = Path(source)
    if (path / MANIFEST_NAME).is_file():
        return read_manifest(path)
    newest = _newest_manifest(path)
    if newest is None:
        what = "holds no checkpoint" if path.is_dir() else "is no folder"
        hint = (
            f" It is a Hugging Face model; import it first: toolkit convert --from-hf {source} OUT."
            if (path / "config.json").is_file()
            else ""
        )
        raise CheckpointError(f"init.from={source} {what}.{hint}{home_hint(source)}\n{_WHAT_TO_GIVE}")
    return newest


def has_begun(settings: RunSettings) -> bool:
    """Whether the run has a checkpoint of its own, so that `[init]` is behind it."""
    return bool(_manifested(Path(settings.run.dir)))


def check_initial(settings: RunSettings, corpus: Corpus, *, key: str) -> None:
    """Refuse, before any rank is started, first weights that cannot be those of this run.

    That is: corpora whose ids mean something else than those that the weights were trained on, another shape, and
    moments that are asked for and not there.

    Args:
        settings: of the run, with the vocabulary filled in.
        corpus: of the run; all of its corpora have one tokenizer.
        key: the setting that names it.

    Raises:
        CheckpointError: there is no checkpoint at `init.from`.
        SettingsError: it does not fit.
    """
    if settings.init is None or has_begun(settings):
        return
    source = settings.init.source
    manifest = initial_manifest(source)
    if corpus.fingerprint != manifest.vocabulary.fingerprint:
        raise SettingsError(
            f"{key} ({corpus.path}) and init.from ({source}) have different tokenizers: fingerprints "
            f"{corpus.fingerprint[:12]} and {manifest.vocabulary.fingerprint[:12]}.\n"
            f"Preprocess the texts with the model's own: toolkit preprocess ... --tokenizer {source}."
        )
    check_weights(settings, manifest, Path(source))


def check_own(settings: RunSettings, corpora: Mapping[str, str]) -> None:
    """Refuse, before any rank is started, settings and corpora that are not those of the run's own newest checkpoint.

    Where none can be read, ranks say what that means.

    Raises:
        SettingsError: naming every key that differs.
        CorpusError: naming the setting whose corpus differs.
    """
    own = _own_manifest(settings)
    if own is not None:
        check_resume(own.settings, settings)
        check_corpora(own.corpora, corpora)


def describe_start(settings: RunSettings) -> str:
    """Where the run begins, in one line.

    Raises:
        CheckpointError: there is no checkpoint at `init.from`.
    """
    own = _own_manifest(settings)
    if own is not None:
        asked = "" if settings.init is None else f"; init.from ({settings.init.source}) is not read again"
        return f"goes on from step {own.step:,} of its own in {settings.run.dir}{asked}"
    if settings.init is None:
        return f"starts from random weights, seed {settings.run.seed}"
    manifest = initial_manifest(settings.init.source)
    kept = "kept" if settings.init.optimizer == "keep" else "new"
    origin = f", from {manifest.first_weights}" if manifest.first_weights else ""
    positions = "".join(f"; {line}" for line in other_positions(settings, manifest))
    return f"starts from {settings.init.source} (step {manifest.step:,}{origin}); the optimizer is {kept}{positions}"


def _own_manifest(settings: RunSettings) -> CheckpointManifest | None:
    try:
        return _newest_manifest(Path(settings.run.dir))
    except CheckpointError:
        return None


def _newest_manifest(folder: Path) -> CheckpointManifest | None:
    """The newest manifest of a run folder, or of a folder of checkpoints; damaged ones are passed over.

    Raises:
        CheckpointError: there are some, and all are damaged.
    """
    damage: CheckpointError | None = None
    for path in _manifested(folder):
        try:
            return read_manifest(path)
        except CheckpointError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return None


def _manifested(folder: Path) -> list[Path]:
    """Checkpoints with a manifest, newest first."""
    found = step_folders(folder / CHECKPOINTS_FOLDER) or step_folders(folder)
    return [path for _, path in found if (path / MANIFEST_NAME).is_file()]
