"""Workers as actors of a Ray cluster.

A worker keeps its CPUs, and its GPU if there are any, until all work is done. One that is lost is replaced as long as
some machine has room; machines that join get workers. What a worker that was given up may still write is up to the
locks of the items: a machine that is cut off does not know that it is lost.
"""

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.execution.ray_cluster import Cluster, last_line
from toolkit.execution.ray_worker import ClusterWorker, Setting
from toolkit.execution.work import Event, Failed, Finished, Key, Lost, Resources, Work

_SECONDS_TO_PLACE = 60.0
_MOST_FAILED_STARTS = 3


@dataclass
class _Place:
    """A worker as the command sees it: `answer` is to come next, if anything, and `key` names the item that it runs."""

    actor: Any
    answer: Any
    setting: Setting
    host: str = ""
    process: int = 0
    is_ready: bool = False
    key: Key | None = None


class RayExecutor:
    """Actors that are started as machines of the cluster, which is left with them, have room; `most` at once.

    `runner` is as `LocalExecutor` takes it; a worker has 0 or 1 GPU. Messages name what is `shared`, besides logs, by
    all machines, and the setting that gives a worker its CPUs.
    """

    def __init__(
        self,
        cluster: Cluster,
        runner: str,
        *,
        most: int,
        resources: Resources,
        logs: Path,
        shared: str,
        cpus_setting: str,
    ) -> None:
        self._cluster, self._ray = cluster, cluster.ray
        self._runner, self._most, self._resources, self._logs = runner, most, resources, logs.absolute()
        self._shared, self._cpus_setting = shared, cpus_setting
        self._places: dict[int, _Place] = {}
        self._num_failed_starts, self._last_placed = 0, time.monotonic()
        logs.mkdir(parents=True, exist_ok=True)
        self._mark = self._logs / f".seen-{uuid.uuid4().hex}"
        self._mark.touch()

    @property
    def workers(self) -> list[int]:
        """Numbers of those that are ready."""
        return sorted(number for number, place in self._places.items() if place.is_ready)

    def start(self, worker: int, work: Work) -> None:
        """Give an idle worker an item."""
        place = self._places[worker]
        place.key, place.answer = work.key, place.actor.run.remote(work)

    def wait(self, seconds: float) -> list[Event]:
        """Events that have happened, or do within so many seconds."""
        self._recruit()
        numbers = {place.answer: number for number, place in self._places.items() if place.answer is not None}
        if not numbers:
            time.sleep(seconds)
            return []
        self._ray.wait(list(numbers), timeout=seconds)
        answered, _ = self._ray.wait(list(numbers), num_returns=len(numbers), timeout=0)
        events = [self._settle(numbers[answer]) for answer in answered]
        return [event for event in events if event is not None]

    def close(self) -> None:
        """End all workers, in the middle of an item too, and leave the cluster."""
        for worker in list(self._places):
            self._remove(worker)
        self._mark.unlink(missing_ok=True)
        self._cluster.close()

    def _recruit(self) -> None:
        """Ask for workers where machines have room; raise SettingsError where there is none for any."""
        room = self._cluster.room(self._resources)
        for number in range(self._most):
            if len(self._places) < min(room, self._most) and number not in self._places:
                self._places[number] = self._ask(number)
        if any(place.host for place in self._places.values()):
            self._last_placed = time.monotonic()
        elif not room or time.monotonic() - self._last_placed > _SECONDS_TO_PLACE:
            raise SettingsError(self._shortage(room))

    def _ask(self, number: int) -> _Place:
        options = {
            "num_cpus": self._resources.cpus,
            "num_gpus": self._resources.gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        actor = self._ray.remote(ClusterWorker).options(**options, scheduling_strategy="SPREAD").remote()
        setting = Setting(self._runner, self._logs / f"worker-{number}.log", self._mark)
        return _Place(actor, actor.place.remote(), setting)

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

    def _settle(self, number: int) -> Event | None:
        """Take a worker's answer; an event, where it was to an item."""
        place = self._places[number]
        try:
            answer = self._ray.get(place.answer)
        except self._ray.exceptions.RayTaskError as error:
            return self._fail(number, error)
        except self._ray.exceptions.RayError:
            return self._lose(number)
        place.answer, key = None, place.key
        if key is not None:
            place.key, (message, is_sound) = None, answer
            if not is_sound:
                self._remove(number)
            return Finished(number, key) if message is None else Failed(number, key, message)
        if not place.host:
            place.host, place.process = answer
            place.answer = place.actor.open.remote(place.setting)
        elif answer is not None:
            raise SettingsError(
                f"machine {place.host} of {self._cluster.name} cannot run work: {answer}. All machines need the same "
                f"installation, and one file system for {self._shared}."
            )
        else:
            place.is_ready, self._num_failed_starts = True, 0
        return None

    def _fail(self, number: int, error: Exception) -> Event:
        """Failure by an error that `attempt` did not catch: something could not be imported, or sent."""
        place = self._remove(number)
        if place.key is None:
            raise SettingsError(
                f"a worker could not start on {self._cluster.name}: {last_line(error)}\n"
                "All machines need the same installation."
            ) from error
        return Failed(number, place.key, str(error))

    def _lose(self, number: int) -> Event | None:
        place = self._remove(number)
        where = f"process {place.process} on {place.host}" if place.host else "its process"
        log = place.setting.log
        if place.key is not None:
            return Lost(number, place.key, f"a crash or kill of {where}; see {log}")
        self._num_failed_starts += not place.is_ready
        if self._num_failed_starts == _MOST_FAILED_STARTS:
            raise SettingsError(
                f"{_MOST_FAILED_STARTS} workers in a row ended while they started, the last one {where}. "
                f"See {log}, and the logs of Ray there."
            )
        return None

    def _remove(self, number: int) -> _Place:
        place = self._places.pop(number)
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(place.actor)
        return place
