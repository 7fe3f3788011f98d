"""Logging to Weights & Biases (`log.wandb`); the package is an extra, imported only here.

The run's id is in the run folder, so that a resumed run continues as the same run there. The package is configured as
usual: `wandb login`, WANDB_MODE=offline, WANDB_ENTITY and so on.
"""

from collections.abc import Mapping
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.run.folder import RunFolder
from toolkit.run.metrics import MetricsLine, scalars


class WandbWriter:
    """One run on Weights & Biases, the same over the life of the run folder.

    Without a `project`, the package chooses one (WANDB_PROJECT, else "uncategorized"); without a `resumed_step`, at a
    fresh start, another run is started there.
    """

    def __init__(
        self, folder: RunFolder, *, project: str | None, resumed_step: int | None, settings: Mapping[str, Any]
    ) -> None:
        self.path = folder.path
        try:
            import wandb
        except ImportError as error:
            raise SettingsError(
                f"log.wandb asks for Weights & Biases, but its package could not be imported: {error}\n"
                "Reinstall it (pip install --force-reinstall wandb), or leave log.wandb out."
            ) from error
        id_file = folder.wandb_file
        known = id_file.read_text(encoding="utf-8").strip() if resumed_step is not None and id_file.is_file() else ""
        try:
            self._run = wandb.init(
                project=project,
                id=known or None,
                resume="allow",
                name=folder.path.name,
                dir=str(folder.path),
                config=dict(settings),
                # The toolkit already prints to the terminal.
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.Error as error:
            raise SettingsError(
                f"could not start Weights & Biases (log.wandb): {error}\n"
                "Log in (wandb login), keep the run on this machine (WANDB_MODE=offline), or leave log.wandb out."
            ) from error
        # A resumed run repeats some steps; by the service's own step counter they would be rejected.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        id_file.write_text(f"{self._run.id}\n", encoding="utf-8")

    def append(self, line: MetricsLine) -> None:
        """Send the scalars of a logged step."""
        self._run.log({"step": line["step"], **scalars(line)})

    def close(self, error: BaseException | None) -> None:
        """Finish sending; a run that ended with an error is shown as failed."""
        self._run.finish(exit_code=0 if error is None else 1)
