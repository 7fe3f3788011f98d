"""The manifest of a checkpoint: the state of the run, and size and hash of every file.

`manifest.json` is canonical JSON (sorted keys, fixed layout, one trailing newline) and contains its own SHA-256,
computed without that key. A reader requires the bytes to equal the canonical form of their content, so that a single
changed byte anywhere in the manifest, white space included, is detected.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from toolkit.core.errors import CheckpointError
from toolkit.core.settings import explain
from toolkit.core.types import FileName, Vocabulary

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
COPY_AGAIN = "Copy the checkpoint again, or use another one."
"""Remedy for a damaged checkpoint, for messages."""
TensorKind = Literal["weights", "exp_avg", "exp_avg_sq"]
_HASH_KEY = "manifest_sha256"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


FIRST_WEIGHTS = "init.from"
"""The key of `corpora` whose hash is that of weights."""


class FileEntry(_Entry):
    """Expected size and hash of a file."""

    bytes: int
    sha256: str


class TensorEntry(_Entry):
    """Place of a parameter: `weights-FILE`, `exp_avg-FILE` and `exp_avg_sq-FILE` each hold one tensor of `shape`."""

    shape: tuple[int, ...]
    file: FileName


class LayoutEntry(_Entry):
    """Ranks, ZeRO stage and degrees of model parallelism of the run that wrote the checkpoint.

    It can be read on any other layout.
    """

    world_size: int
    zero_stage: int
    tp: int = 1
    pp: int = 1
    micro_batch_rows: int | None = None
    """Which the run keeps on this layout where `train.micro_batch_rows` is unset. Written only by runs."""
    stages: tuple[int, ...] = ()
    """Blocks of each pipeline stage, which it keeps where `parallel.stages` is unset. Written only for a pipeline."""


class ParentEntry(_Entry):
    """A checkpoint that a merge took its weights from: SHA-256 of its manifest file, and its share of the mean."""

    path: str
    step: int
    sha256: str
    weight: float


class VocabularyEntry(_Entry):
    """The ids of the tokenizer, and its fingerprint."""

    size: int
    mask_id: int | None
    pad_id: int
    bos_id: int | None
    eos_id: int | None
    special_ids: tuple[int, ...]
    fingerprint: str

    @classmethod
    def of(cls, vocabulary: Vocabulary, fingerprint: str) -> "VocabularyEntry":
        """The entry that describes `vocabulary`."""
        known = {name: value for name, value in vars(vocabulary).items() if name in cls.model_fields}
        return cls(**known, fingerprint=fingerprint)


class CheckpointManifest(_Entry):
    """The content of `manifest.json`."""

    format_version: int = FORMAT_VERSION
    """Version of the format; a reader refuses one it does not know."""

    toolkit_version: str
    """Version of the toolkit that wrote it."""

    step: int
    """Updates made so far."""

    optimizer_step: int
    """AdamW's own count of updates, which starts over when the optimizer is reset."""

    tokens: int
    """Non-padding tokens trained on so far."""

    data_position: int
    """Global sample position of the next row."""

    data_digest: str
    """Digest of all rows so far, hexadecimal."""

    settings: dict[str, Any]
    """The resolved settings of the run, with the model's `vocab_size` filled in."""

    phase_settings: dict[str, dict[str, Any]] = {}
    """What the phase of the last step has otherwise, by table of `settings`. Written only if there is anything."""

    corpora: dict[str, str] = {}
    """Hash of the manifest of each corpus of the run, by the setting that names it; under init.from, `weights_sha256`
    of what the run began with."""

    vocabulary: VocabularyEntry
    """Ids and fingerprint of the tokenizer, whose files lie in `tokenizer/`."""

    layout: LayoutEntry
    """Ranks and ZeRO stage of the run that wrote it."""

    kernels: dict[str, str] = {}
    """What that run computed with: `attention` names the kernel, `blocks` is "eager" or "compiled". Written only by
    runs."""

    plugins: dict[str, str] = {}
    """Package and version that the run's objectives come from, by kind. Written only for those that are not ours."""

    tensors: dict[str, TensorEntry]
    """Every parameter by its Hugging Face name."""

    files: dict[FileName, FileEntry]
    """Every file of the folder but the manifest, by its path inside the folder."""

    losses: dict[str, float]
    """The last known losses, by name; nats per target token."""

    recent_losses: dict[str, tuple[float, ...]] = {}
    """By objective, losses of the last steps of the phase, which later ones are compared with. Written only if there
    are any."""

    has_moments: bool = True
    """AdamW's moments are there; an imported model and a merge have none, nor has a kept checkpoint under
    `checkpoint.keep_weights_only`. Written only if false."""

    merged: tuple[ParentEntry, ...] = ()
    """The checkpoints whose weighted mean the weights are; all else is the last one's. Written only by `merge`."""

    origin: dict[str, str] = {}
    """Where the weights come from if the run did not initialize them: `run` and `step` name the run they were taken
    from, `model` and `family` the imported model that came first, `tokenizer` and `rows` the tokenizer that was put in
    the place of its own and what its rows were made of, `grown` how a smaller model became the first weights, `merged`
    how many checkpoints were merged, of which the last was that of `run` and `step`. Written only in that case."""

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of parameter names and the hashes of their weights' files, independent of the checkpoint's path."""
        hashes = {name: self.files[f"weights-{entry.file}"].sha256 for name, entry in self.tensors.items()}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def without_moments(self) -> "CheckpointManifest":
        """The manifest of the same checkpoint with only its weights."""
        moments = {f"{kind}-{entry.file}" for kind in ("exp_avg", "exp_avg_sq") for entry in self.tensors.values()}
        files = {name: entry for name, entry in self.files.items() if name not in moments}
        return self.model_copy(update={"files": files, "has_moments": False})

    def table(self, name: str) -> dict[str, Any]:
        """A table of the settings, such as `model`, as in the phase of the last step; empty if absent."""
        table = self.settings.get(name)
        return (table if isinstance(table, dict) else {}) | self.phase_settings.get(name, {})

    @property
    def first_weights(self) -> str:
        """`origin` in words; empty for freshly initialized weights."""
        origin = self.origin
        family = f" ({origin['family']})" if "family" in origin else ""
        other = f" with the tokenizer {origin['tokenizer']}" if "tokenizer" in origin else ""
        imported = f"{origin['model']}{family}{other}" if "model" in origin else ""
        if "run" not in origin:
            return imported
        run = f"step {origin['step']} of the run {origin['run']}"
        run = f"a merge of {origin['merged']} checkpoints up to {run}" if "merged" in origin else run
        return f"{run}, which started from {imported}" if imported else run


def tensor_file(kind: TensorKind, file: str) -> str:
    """Name of the file with the tensors of one kind, from the `file` of a `TensorEntry`."""
    return f"{kind}-{file}"


def manifest_bytes(manifest: CheckpointManifest) -> bytes:
    """The content of the manifest file."""
    content = manifest.model_dump(mode="json")
    for key in ("phase_settings", "kernels", "plugins", "recent_losses", "has_moments", "merged", "origin"):
        if getattr(manifest, key) == CheckpointManifest.model_fields[key].default:
            del content[key]
    if manifest.layout.micro_batch_rows is None:
        del content["layout"]["micro_batch_rows"]
    if not manifest.layout.stages:
        del content["layout"]["stages"]
    content[_HASH_KEY] = hashlib.sha256(_canonical(content)).hexdigest()
    return _canonical(content)


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read and check a folder's manifest. Raise `CheckpointError` if it is missing, damaged or of another format."""
    path = folder / MANIFEST_NAME
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}. {COPY_AGAIN}") from error
    return parse_manifest(raw, path)


def parse_manifest(raw: bytes, path: Path | str) -> CheckpointManifest:
    """Check a manifest's content, called `path` in messages. Raise `CheckpointError` like `read_manifest`."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: it is not JSON. {COPY_AGAIN}") from error
    if not isinstance(content, dict) or _canonical(content) != raw:
        raise CheckpointError(f"{path} is damaged: it is not canonical JSON. {COPY_AGAIN}")
    recorded = content.pop(_HASH_KEY, None)
    found = hashlib.sha256(_canonical(content)).hexdigest()
    if recorded != found:
        raise CheckpointError(
            f"{path} is damaged: expected SHA-256 {str(recorded)[:12]}, found {found[:12]}. {COPY_AGAIN}"
        )
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {version}; this toolkit reads version {FORMAT_VERSION}. "
            f"It was written by toolkit {content.get('toolkit_version')}: use that version or a newer one."
        )
    try:
        return CheckpointManifest.model_validate(content)
    except ValidationError as error:
        found = explain(error, CheckpointManifest).splitlines()[0]
        raise CheckpointError(f"{path} does not describe a checkpoint: {found} {COPY_AGAIN}") from error


def _canonical(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
