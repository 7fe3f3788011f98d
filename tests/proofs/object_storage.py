"""An S3 server on the loopback (moto's, in a process of its own), for proofs; needs s3fs and moto[server].

It forgets its objects when it is killed, as none that is worth the name does: a `Server` keeps the files that were
uploaded, and puts them there again when it is started again.
"""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from toolkit.remote import put

BUCKET = "s3://bucket"


def is_available() -> bool:
    """The packages are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("s3fs", "moto", "flask", "flask_cors"))


class Server:
    """The server, its port, and the environment in which commands find it."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log, self._uploaded = log, dict[str, Path]()
        self.variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        os.environ.update(self.variables)
        import s3fs

        # One of a server before this has its address.
        s3fs.S3FileSystem.clear_instance_cache()
        self.start()

    def start(self) -> None:
        """Start it, with all that was uploaded."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                break
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.1)
        import boto3

        boto3.client("s3").create_bucket(Bucket=BUCKET.removeprefix("s3://"))
        for url, path in self._uploaded.items():
            put(path, url)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def upload(self, folder: Path, url: str) -> None:
        """Put all files of a folder below a URL."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                target = f"{url}/{path.relative_to(folder)}"
                put(path, target)
                self._uploaded[target] = path

    def fetched(self, ending: str) -> list[str]:
        """Paths of the objects that were read, each as often as it was, by the server's log."""
        lines = [line.split('"')[1].split() for line in self._log.read_text().splitlines() if '"' in line]
        paths = [words[1].partition("?")[0] for words in lines if "GET" in words[0] and len(words) > 1]
        return sorted(path for path in paths if path.endswith(ending))


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Server]:
    """One that runs inside the block."""
    before, running = dict(os.environ), Server(folder / "server.log")
    try:
        yield running
    finally:
        running.kill()
        os.environ.clear()
        os.environ.update(before)
