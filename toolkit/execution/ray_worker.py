"""Life of a worker on a machine of a cluster: it is made like the command's own process, and then runs items."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import toolkit
from toolkit.core.machine import version_of
from toolkit.execution.work import Work
from toolkit.execution.worker import Answer, Runner, attempt, load_runner, redirect_output

_PASSED_ON = (
    "ATEN_", "AWS_", "CUBLAS_", "DNNL_", "DS_ACCELERATOR", "FSSPEC_", "GOMP_", "HF_", "KMP_", "MKL_", "NCCL_",
    "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TOKENIZERS_", "TORCH_", "TRANSFORMERS_", "XDG_CACHE_HOME",
)  # fmt: skip
"""First letters of environment variables that results, caches, the hub and object storage depend on, keys included."""
_VERSIONS = ("gigatoken", "numpy", "rensa", "sentencepiece", "tiktoken", "tokenizers", "torch", "transformers")


def _versions() -> dict[str, str]:
    return {"this toolkit": toolkit.__version__, **{name: version_of(name) for name in _VERSIONS}}


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}


@dataclass(frozen=True)
class Setting:
    """Everything that makes a worker's process like the command's own.

    `mark` is a file that the command has made: every machine has to see it. `runner` is the "module:name" of a callable
    that returns what runs items.
    """

    runner: str
    log: Path
    mark: Path
    directory: str = field(default_factory=os.getcwd)
    search_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    environment: Mapping[str, str] = field(default_factory=_environment)
    versions: Mapping[str, str] = field(default_factory=_versions)


class ClusterWorker:
    """The actor: a process that runs one item at a time."""

    def place(self) -> tuple[str, int]:
        """Name of the machine, and process id."""
        return socket.gethostname(), os.getpid()

    def open(self, setting: Setting) -> str | None:
        """Get ready for items; the message of what is not right on this machine, if anything."""
        os.environ.update(setting.environment)
        sys.path.extend(path for path in setting.search_path if path not in sys.path)
        try:
            os.chdir(setting.directory)
        except OSError as error:
            return f"it cannot use the command's working directory {setting.directory}: {error.strerror}"
        if not setting.mark.is_file():
            return f"it does not see the folder {setting.mark.parent} of the machine where the command runs"
        own = _versions()
        for name, version in setting.versions.items():
            if own[name] != version:
                return f"it has version {own[name]} of {name}, and the command {version}"
        redirect_output(setting.log)
        self._runner: Runner = load_runner(setting.runner)
        return None

    def run(self, work: Work) -> Answer:
        """Run an item; errors are part of the answer."""
        return attempt(self._runner, work)
