"""Workers on the machines of a Ray cluster, which share a file system: each is a process that an actor starts.

An actor keeps its CPUs, and its GPU if there are any, until all work is done. Ray starts an actor once a machine has
room for it, also on machines that join. Ray is an extra (`cluster`) and imported only here.
"""

import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import toolkit
from toolkit.core.errors import SettingsError
from toolkit.core.machine import version_of
from toolkit.work.claims import Job, process_name
from toolkit.work.start import Crew, Ended, why_ended
from toolkit.work.worker import worker_command

_OBJECT_STORE_BYTES = 100 << 20
_SECONDS_TO_CONNECT, _SECONDS_TO_PLACE = 10.0, 60.0
_PASSED_ON = (
    "ATEN_", "AWS_", "CUBLAS_", "DNNL_", "DS_ACCELERATOR", "FSSPEC_", "GOMP_", "HF_", "KMP_", "MKL_", "NCCL_",
    "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TOKENIZERS_", "TORCH_", "TRANSFORMERS_", "XDG_CACHE_HOME",
)  # fmt: skip
"""Prefixes of environment variables that affect results, caches, the hub and object storage, access keys included."""
_VERSIONS = ("gigatoken", "numpy", "rensa", "sentencepiece", "tiktoken", "tokenizers", "torch", "transformers")


@dataclass(frozen=True)
class Resources:
    """Resources of a worker."""

    cpus: int
    gpus: int = 0


class Cluster:
    """A connection to a Ray cluster: that of RAY_ADDRESS, else one that runs on this machine, else a new one here."""

    def __init__(self) -> None:
        address = _address()
        self.name = "a new local Ray cluster" if address is None else f"the Ray cluster at {address}"
        has_token = bool(os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"))
        has_token = has_token or Path("~/.ray/auth_token").expanduser().is_file()
        if address is not None and not os.environ.get("RAY_ADDRESS") and has_token:
            # As Ray does if it finds a cluster itself; to that of RAY_ADDRESS it sends no token unless asked.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        # Not "auto": Ray would accept any process of this machine, of any user, that looks like a cluster.
        options: dict[str, Any] = {"address": address}
        if address is None:
            # A cluster of our cores, which ends with this process.
            options = {
                "address": "local",
                "num_cpus": len(os.sched_getaffinity(0)),
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
            }
            # Read when Ray is imported. Without a token, Ray would leave one in the home folder, which each later
            # `ray start` of this user would require.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", uuid.uuid4().hex * 2)
        try:
            import ray
        except ImportError as error:
            raise SettingsError(
                f"--executor ray needs the extra `cluster`, which could not be imported: {error}\n"
                "Install it (pip install 'ray>=2.60,<3'), or leave --executor out: workers are then local processes."
            ) from error
        self.ray: Any = ray
        # Ray prints pages if a worker or machine is lost, which is already reported in one line.
        vars(ray._private.worker)["print_to_stdstream"] = lambda *_, **__: None
        try:
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        # Ray raises SystemExit if something other than Ray answers at the address.
        except (Exception, SystemExit) as error:
            raise SettingsError(
                f"could not connect to {self.name}: {_last_line(error.__cause__ or error)}\n"
                "Start the command on a machine of the cluster (`ray start --address ...` adds one), with the same "
                "versions of Python and Ray as there, and with RAY_AUTH_MODE=token if the cluster has a token."
            ) from error

    def close(self) -> None:
        """Disconnect from the cluster; a local one is shut down."""
        self.ray.shutdown()

    def nodes(self) -> list[tuple[str, Mapping[str, float]]]:
        """Names and resources of the machines that are alive."""
        return [(node["NodeManagerHostname"], node["Resources"]) for node in self.ray.nodes() if node["Alive"]]

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all machines."""
        return int(sum(resources.get("GPU", 0) for _, resources in self.nodes()))

    def room(self, resources: Resources) -> int:
        """Number of workers with these resources that fit on the machines, ignoring the work of others."""
        wanted = {name: number for name, number in (("CPU", resources.cpus), ("GPU", resources.gpus)) if number}
        return sum(
            min(math.floor(found.get(name, 0) / number) for name, number in wanted.items()) for _, found in self.nodes()
        )


def _address() -> str | None:
    """Address of the cluster to connect to; None to start a local one."""
    given = os.environ.get("RAY_ADDRESS", "")
    if given == "local":
        return None
    if given not in ("", "auto"):
        if reason := _silence(given):
            raise SettingsError(
                f"could not reach a Ray cluster at RAY_ADDRESS={given}: {reason}. Start one (`ray start --head`), "
                "correct RAY_ADDRESS (HOST:PORT), or unset it: a cluster that runs on this machine is found, and "
                "without one a local one is started."
            )
        return given
    # Written by `ray start`; the cluster may have ended.
    current = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    try:
        with open(os.open(current, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as file:
            owner, found = os.fstat(file.fileno()).st_uid, file.read().strip()
    except (OSError, ValueError):
        return None
    if not found or _silence(found) is not None:
        return None
    if owner != os.getuid():
        # Its owner would run our work, and get our tokens.
        raise SettingsError(
            f"a Ray cluster runs at {found}, but {current}, which says so, belongs to another user. Set "
            "RAY_ADDRESS=HOST:PORT to the cluster to use, or RAY_ADDRESS=local to start one."
        )
    return found


def _silence(address: str) -> str | None:
    """Reason why nothing answers at an address; None if something does. Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not host or "/" in host:
        return "expected HOST:PORT"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_CONNECT):
            return None
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)


def _last_line(error: BaseException) -> str:
    """Last line of an error's message; the name of its class if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def _versions() -> dict[str, str]:
    return {"this toolkit": toolkit.__version__, **{name: version_of(name) for name in _VERSIONS}}


def _environment() -> dict[str, str]:
    passed_on = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    return {**passed_on, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@dataclass(frozen=True)
class Setting:
    """Everything that makes a worker's process like the command's own; every machine has to see the job's file."""

    job_file: Path
    log: Path
    directory: str = field(default_factory=os.getcwd)
    environment: Mapping[str, str] = field(default_factory=_environment)
    versions: Mapping[str, str] = field(default_factory=_versions)

    def fault(self) -> str | None:
        """Description of what is wrong on this machine; None if nothing is."""
        if not Path(self.directory).is_dir():
            return f"it has no folder {self.directory}, the command's working directory"
        if not self.job_file.is_file():
            return f"it does not see the folder {self.job_file.parent} of the machine where the command runs"
        own = _versions()
        for name, version in self.versions.items():
            if own[name] != version:
                return f"it has version {own[name]} of {name}, and the command {version}"
        return None


class RayWorker:
    """Actor that starts a worker, which ends with it."""

    def begin(self, setting: Setting) -> tuple[str, str | None]:
        """Start a worker; return its name in records of attempts, or this machine's name and what is wrong here."""
        if fault := setting.fault():
            return socket.gethostname(), fault
        self._process = subprocess.Popen(
            worker_command(setting.job_file, setting.log),
            env={**os.environ, **setting.environment},
            cwd=setting.directory,
        )
        return process_name(self._process.pid), None

    def end(self) -> int:
        """Wait for the worker's exit code."""
        return self._process.wait()


@dataclass
class _Place:
    """An actor as the command sees it: its two pending results, and the worker's name once it has one."""

    actor: Any
    begun: Any
    ended: Any
    process: str = ""


class OnRay(Crew):
    """Workers on a cluster, as many as its machines have room for, at most `most`; closing disconnects from it.

    Messages name what all machines share besides logs (`shared`), and the setting that gives a worker its CPUs.
    """

    def __init__(
        self,
        job: Job,
        *,
        cluster: Cluster,
        most: int,
        resources: Resources,
        logs: Path,
        shared: str,
        cpus_setting: str,
    ) -> None:
        super().__init__(job, most=most, logs=logs)
        self._cluster, self._ray, self._resources = cluster, cluster.ray, resources
        self._shared, self._cpus_setting = shared, cpus_setting
        self._places, self._last_placed = dict[int, _Place](), time.monotonic()

    def _room(self) -> int:
        room = self._cluster.room(self._resources)
        if any(place.process for place in self._places.values()):
            self._last_placed = time.monotonic()
        elif not room or time.monotonic() - self._last_placed > _SECONDS_TO_PLACE:
            raise SettingsError(self._shortage(room))
        return room

    def _start(self, number: int) -> None:
        options = {"num_cpus": self._resources.cpus, "num_gpus": self._resources.gpus, "max_restarts": 0}
        actor = self._ray.remote(RayWorker).options(**options, scheduling_strategy="SPREAD").remote()
        begun = actor.begin.remote(Setting(self._job_file, self._log(number)))
        self._places[number] = _Place(actor, begun, actor.end.remote())

    def _ended(self, number: int) -> Ended | None:
        place, log = self._places[number], self._log(number)
        try:
            if not place.process and self._is_there(place.begun):
                place.process, fault = self._ray.get(place.begun)
                if fault is not None:
                    raise SettingsError(
                        f"machine {place.process} of {self._cluster.name} cannot run work: {fault}. All machines need "
                        f"the same installation, and one file system for {self._shared}."
                    )
            if not place.process or not self._is_there(place.ended):
                return None
            code = self._ray.get(place.ended)
            ended = Ended(place.process, code, why_ended(code, log))
        except self._ray.exceptions.RayTaskError as error:
            raise SettingsError(
                f"a worker could not start on {self._cluster.name}: {_last_line(error)}\n"
                "All machines need the same installation."
            ) from error
        except self._ray.exceptions.RayError:
            host, _, process = place.process.partition(" ")
            where = f"process {process} on {host}" if process else "its process"
            ended = Ended(place.process, None, f"a crash or kill of {where}; see {log}")
        self._remove(number)
        return ended

    def _is_there(self, answer: Any) -> bool:
        return bool(self._ray.wait([answer], timeout=0)[0])

    def _remove(self, number: int) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._places.pop(number).actor)

    def _terminate(self) -> None:
        # The workers end with their actors.
        for number in list(self._places):
            self._remove(number)
        self._alive.clear()

    def _close(self) -> None:
        self._terminate()
        self._cluster.close()

    def _shortage(self, room: int) -> str:
        cpus, gpus = self._resources.cpus, self._resources.gpus
        asked = f"a worker asks for {cpus} CPU" + (f" and {gpus} GPU" if gpus else "")
        remedy = (
            f"Set {self._cpus_setting} (a worker's CPUs), add machines (`ray start --address ...`), or leave "
            "--executor out."
        )
        if not room:
            found = ", ".join(
                f"{name}: {resources.get('CPU', 0):g} CPU, {resources.get('GPU', 0):g} GPU"
                for name, resources in self._cluster.nodes()
            )
            return f"no machine of {self._cluster.name} has room: {asked}, found {found or 'none'}. {remedy}"
        free = self._ray.available_resources()
        return (
            f"{self._cluster.name} is busy: {asked}, and within {_SECONDS_TO_PLACE:.0f} seconds no machine had them "
            f"free (in all, {free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU are). Wait for what else runs "
            "there (`ray status` shows it), and run the same command again."
        )
