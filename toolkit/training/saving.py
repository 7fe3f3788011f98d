"""When checkpoints of a run are saved, and what their manifests say."""

from pathlib import Path

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.retention import CheckpointSettings
from toolkit.engine.engine import Engine
from toolkit.engine.saving import save_checkpoint
from toolkit.training.run_state import RunState


class CheckpointSaver:
    """Saves checkpoints of a run; collective.

    Args:
        engine: all ranks'.
        root: RUN_DIR/checkpoints.
        settings: when to save.
        manifest: of this run; the state is filled in at each save.
        tokenizer_folder: of the training corpus.
        first_step: the step this process starts from, which needs no saving.
        rows_per_step: G.
    """

    def __init__(
        self,
        engine: Engine,
        root: Path,
        settings: CheckpointSettings,
        *,
        manifest: CheckpointManifest,
        tokenizer_folder: Path,
        first_step: int,
        rows_per_step: int,
    ) -> None:
        self._engine, self._root, self._settings, self._manifest = engine, root, settings, manifest
        self._tokenizer_folder, self._rows_per_step = tokenizer_folder, rows_per_step
        self._saved_step = first_step

    def is_due(self, state: RunState) -> bool:
        """Whether a checkpoint is saved after this step, be it the last of the process or not."""
        return self._settings.is_due(state.step)

    def is_saved(self, state: RunState) -> bool:
        """Whether there is a checkpoint of this step, or nothing to save yet."""
        return state.step == self._saved_step

    def save(self, state: RunState) -> Path:
        """Save a checkpoint and return its folder.

        Raises:
            CheckpointError: on every rank, if any could not write.
        """
        manifest = self._manifest.model_copy(
            update={
                "step": state.step,
                "optimizer_step": self._manifest.optimizer_step + state.step,
                "tokens": state.tokens,
                "data_position": state.step * self._rows_per_step,
                "data_digest": state.digest.hex(),
                "losses": dict(state.losses),
            }
        )
        folder = save_checkpoint(self._engine, self._root, manifest=manifest, tokenizer_folder=self._tokenizer_folder)
        self._saved_step = state.step
        return folder
