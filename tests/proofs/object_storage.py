"""An S3 server on the loopback (moto's, in a process of its own), for proofs; needs s3fs and moto[server].

It forgets its objects when it is killed, as none that is worth the name does: a `Server` keeps the files that were
uploaded, and puts them there again when it is started again.
"""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from toolkit.storage import put

BUCKET = "s3://bucket"
# With its objects before its port is open: one who looks in between would find a storage that has lost them.
_PROGRAM = """
import json, sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.test import Client

app = DomainDispatcherApplication(create_backend_app)
for path, file in json.load(sys.stdin).items():
    found = Client(app).put(path, base_url="http://127.0.0.1", data=open(file, "rb").read() if file else b"")
    assert found.status_code == 200, (path, found.data)
run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)
"""


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
        objects = {url.removeprefix("s3:/"): str(path) for url, path in self._uploaded.items()}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(self._port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
        assert self._process.stdin is not None
        with self._process.stdin as told:
            json.dump({BUCKET.removeprefix("s3:/"): ""} | objects, told)
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                break
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.1)

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
