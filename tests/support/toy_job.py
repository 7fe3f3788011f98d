"""A job whose items write down who did them, and then do as they are told.

python -m tests.support.toy_job FOLDER NUM_WORKERS NUM_ITEMS      is a command that shares it with others
"""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.core.errors import UserError
from toolkit.work.claims import Claims, Item, Job, StoppedError
from toolkit.work.commands import Command
from toolkit.work.start import Here

SECONDS = 0.05


class ToyJob(Job):
    """Items whose payload is a word; `done/KEY` is the result, and `attempts/KEY` has the processes that tried."""

    def __init__(self, folder: Path, items: Sequence[Item]) -> None:
        super().__init__(command_at(folder).work, items)
        self.root = folder
        for name in ("attempts", "done", "failed"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def do(self, item: Item) -> None:
        with (self.root / "attempts" / item.key).open("a") as file:
            file.write(f"{os.getpid()}\n")
        match item.payload:
            case "raise":
                raise UserError("a file is broken")
            case "break":
                raise RuntimeError("a bug")
            case "stop":
                raise StoppedError
            case "die once" if len(self.attempts(item.key)) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(7)
            case "die in the middle" if len(self.attempts(item.key)) == 1:
                self._write(item)
                os.kill(os.getpid(), signal.SIGKILL)
            case "wait":
                while not (self.root / "go").exists():
                    time.sleep(SECONDS)
            case "meet":
                while len(list((self.root / "attempts").iterdir())) < len(self.items):
                    time.sleep(SECONDS)
            case "work":
                time.sleep(SECONDS)
        self._write(item)

    def _write(self, item: Item) -> None:
        # Found out if two processes do it, or one twice.
        with (self.root / "done" / item.key).open("x") as file:
            file.write(os.environ.get("TOY_PLACE", ""))

    def is_done(self, item: Item) -> bool:
        return (self.root / "done" / item.key).exists()

    def fail(self, item: Item, message: str) -> None:
        (self.root / "failed" / item.key).write_text(message)

    def attempts(self, key: str) -> list[int]:
        """Processes that have tried an item, in order."""
        file = self.root / "attempts" / key
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    @property
    def failures(self) -> Mapping[str, str]:
        """Messages of items that failed, by key."""
        claims = Claims(self)
        claims.look()
        return claims.failed

    @property
    def done(self) -> set[str]:
        """Keys of the results that are there."""
        return {file.name for file in (self.root / "done").iterdir()}


def command_at(folder: Path) -> Command:
    """A command that shares what a folder has."""
    return Command(folder, name="toy", what="toy", elsewhere="name another folder")


def crew_of(job: ToyJob, num_workers: int) -> Here:
    """Workers of this process for a job."""
    return Here(job, places=[{}] * num_workers, logs=job.root / "logs")


def main(folder: Path, num_workers: int, num_items: int) -> int:
    """Be one of the commands that share a job, and return the exit code."""
    # By its own name, since workers import it.
    from tests.support.toy_job import ToyJob as Imported

    job = Imported(folder, [Item(f"item-{number}", "work", group=number % 3) for number in range(num_items)])
    with command_at(folder) as command:
        with command.locked():
            command.join("toy", otherwise="another key")
        with crew_of(job, num_workers) as crew:
            crew.run(lambda lines: print(*lines, sep="\n", end="", flush=True))
    return len(job.failures)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
