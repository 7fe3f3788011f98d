"""A connection to a Ray cluster: on this machine, or on many that share a file system.

Ray is an extra (`cluster`) and imported here only.
"""

import logging
import math
import os
import socket
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.execution.work import Resources

_OBJECT_STORE_BYTES = 100 << 20
_SECONDS_TO_CONNECT = 10.0


class Cluster:
    """A connection to a Ray cluster: the one of RAY_ADDRESS, else one that runs here, else a new one here."""

    def __init__(self) -> None:
        address = _address()
        self.name = "a new local Ray cluster" if address is None else f"the Ray cluster at {address}"
        has_token = bool(os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"))
        has_token = has_token or Path("~/.ray/auth_token").expanduser().is_file()
        if address is not None and not os.environ.get("RAY_ADDRESS") and has_token:
            # As Ray does where it finds a cluster itself; to that of RAY_ADDRESS it shows none unless it is told to.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        if address is None:
            # Read when Ray is imported. Without a token, it would leave one in the home folder, for which each later
            # `ray start` of this user would ask.
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
        # Ray prints pages where a worker or machine is lost, which is told in a line already.
        vars(ray._private.worker)["print_to_stdstream"] = lambda *_, **__: None
        try:
            ray.init(**_options(address), log_to_driver=False, logging_level=logging.ERROR)
        # An address that answers, but not as Ray does, ends in SystemExit.
        except (Exception, SystemExit) as error:
            raise SettingsError(
                f"could not connect to {self.name}: {last_line(error.__cause__ or error)}\n"
                "Start the command on a machine of the cluster (`ray start --address ...` adds one), with the same "
                "versions of Python and Ray as there, and with RAY_AUTH_MODE=token if the cluster has a token."
            ) from error

    def close(self) -> None:
        """Leave the cluster; a local one ends."""
        self.ray.shutdown()

    def nodes(self) -> list[tuple[str, Mapping[str, float]]]:
        """Names and resources of the machines that are alive."""
        return [(node["NodeManagerHostname"], node["Resources"]) for node in self.ray.nodes() if node["Alive"]]

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all machines."""
        return int(sum(resources.get("GPU", 0) for _, resources in self.nodes()))

    def room(self, resources: Resources) -> int:
        """Workers of these resources that the machines hold, those of others not counted."""
        wanted = {name: number for name, number in (("CPU", resources.cpus), ("GPU", resources.gpus)) if number}
        return sum(
            min(math.floor(found.get(name, 0) / number) for name, number in wanted.items()) for _, found in self.nodes()
        )


def _options(address: str | None) -> dict[str, Any]:
    """Arguments of `ray.init` for an address; None: of a cluster of this machine's cores that ends with us."""
    if address is None:
        return {
            "address": "local",
            "num_cpus": len(os.sched_getaffinity(0)),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
    # Not "auto", with which Ray takes any process of this machine, of whatever user, that looks like a cluster.
    return {"address": address}


def _address() -> str | None:
    """Address of the cluster to connect to; None: a local one is to be started."""
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
    # Written by `ray start`; it may be that of a cluster that has ended.
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
    """Reason why nothing answers at an address; None where something does. Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not host or "/" in host:
        return "expected HOST:PORT"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_CONNECT):
            return None
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)


def last_line(error: BaseException) -> str:
    """Last line of an error's message; the name of its class where it has none."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
