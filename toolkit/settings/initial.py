"""`[init]`: a run that starts from weights that are there already.

They bring the shape of the model, and their tokenizer is the one that the corpora must have. Once the run has a
checkpoint of its own it goes on from that one, and where the first weights lie, or whether they still do, is no matter.
"""

from pathlib import Path
from typing import Any

from toolkit.checkpoint.folders import step_folders
from toolkit.checkpoint.manifest import MANIFEST_NAME, CheckpointManifest, read_manifest
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.core.wording import home_hint
from toolkit.data.corpus import Corpus
from toolkit.model.config import ModelSettings
from toolkit.settings.run import RunSettings

__all__ = ["bring_model", "check_tokenizer", "has_begun", "initial_manifest"]

_CHECKPOINTS = "checkpoints"


def bring_model(raw: dict[str, Any]) -> None:
    """Fill in `[model]` from the model that `init.from` names; keys that are given win, and a whole shape needs none.

    Raises:
        CheckpointError: there is no checkpoint at `init.from`, or it does not describe a model.
    """
    init, run = raw.get("init"), raw.get("run")
    source = init.get("from") if isinstance(init, dict) else None
    given = raw.get("model", {})
    if not isinstance(source, str) or not source or not isinstance(given, dict):
        return
    required = {name for name, field in ModelSettings.model_fields.items() if field.is_required()}
    if required <= given.keys():
        return
    folder = run.get("dir") if isinstance(run, dict) else None
    own = _newest(Path(folder)) if isinstance(folder, str) else None
    model = (initial_manifest(source) if own is None else read_manifest(own)).settings.get("model")
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
    newest = _newest(path)
    if newest is None:
        what = "holds no checkpoint" if path.is_dir() else "is no folder"
        hint = (
            f" It is a Hugging Face model; import it first: toolkit convert --from-hf {source} OUT."
            if (path / "config.json").is_file()
            else ""
        )
        raise CheckpointError(
            f"init.from={source} {what}.{hint}{home_hint(source)}\n"
            "Give a folder that `toolkit convert --from-hf` wrote, a checkpoint (RUN_DIR/checkpoints/step-NNNNNNNN), "
            "or a run folder."
        )
    return read_manifest(newest)


def has_begun(settings: RunSettings) -> bool:
    """Whether the run has a checkpoint of its own, so that `[init]` is behind it."""
    return _newest(Path(settings.run.dir)) is not None


def check_tokenizer(settings: RunSettings, corpus: Corpus, *, key: str) -> None:
    """Refuse corpora whose ids mean something else than those that the first weights were trained on.

    Args:
        settings: of the run.
        corpus: of the run; all of its corpora have one tokenizer.
        key: the setting that names it.

    Raises:
        CheckpointError: there is no checkpoint at `init.from`.
        SettingsError: the tokenizers differ.
    """
    if settings.init is None or has_begun(settings):
        return
    expected = initial_manifest(settings.init.source).vocabulary.fingerprint
    if corpus.fingerprint != expected:
        raise SettingsError(
            f"{key} ({corpus.path}) and init.from ({settings.init.source}) have different tokenizers: fingerprints "
            f"{corpus.fingerprint[:12]} and {expected[:12]}.\n"
            f"Preprocess the texts with the model's own: toolkit preprocess ... --tokenizer {settings.init.source}."
        )


def _newest(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder, or of a folder of checkpoints, that has a manifest."""
    found = step_folders(folder / _CHECKPOINTS) or step_folders(folder)
    return next((path for _, path in found if (path / MANIFEST_NAME).is_file()), None)
