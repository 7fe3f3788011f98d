"""A hub of our own on the loopback: real sockets, the protocol that `huggingface_hub` speaks, faults on demand.

Repositories are folders below a root; what lies in them is served as their `main`:

    root/datasets/org/name/data/part-0.parquet
    root/models/org/name/tokenizer.json
    root/datasets/org/name@refs%2Fconvert%2Fparquet/...     another revision, its name percent-encoded

    with HubServer(root) as hub:
        os.environ["HF_ENDPOINT"] = hub.endpoint             # before huggingface_hub is imported, or in a child process
        ...
        hub.lock("datasets/org/name", "hf_token")            # gated: this token may read it
        hub.break_next("part-0.parquet", drop_after=1000)    # the next matching answer ends after 1,000 bytes
        hub.bytes_sent("part-0.parquet")

Large files (Parquet, weights, or 1 MB) answer as on the hub: `resolve` names commit, etag and size and redirects to a
second server, the CDN, at another host name; it honours ranges and refuses a request that brings a token along. Small
files are redirected once inside the hub, as there. Not served: uploads, Xet, listings with `expand`.
"""

import contextlib
import hashlib
import socket
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote

from tests.support.hub_protocol import Fault, HubHandler, Refused, Request, files_of


class HubServer:
    """Serves the repositories below `root` until the `with` block ends.

    Args:
        root: holds `datasets/` and `models/`.
        page_size: entries of one page of a listing.

    Attributes:
        endpoint: what HF_ENDPOINT is set to.
        requests: everything that was asked, in order of the answers.
        address_age: how often the addresses on the CDN have expired.
    """

    def __init__(self, root: Path, *, page_size: int = 1000) -> None:
        self.root, self.page_size = root, page_size
        self.requests: list[Request] = []
        self.address_age = 0
        self._tokens: dict[str, set[str]] = {}
        self._listed: set[str] = set()
        self._faults: list[Fault] = []
        self._hashes: dict[tuple[Path, int, int], tuple[str, str]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "HubServer":
        self._servers = [_serve("127.0.0.1", self, "hub"), _serve("localhost", self, "cdn")]
        # Two names of one machine: for a client they are two hosts.
        self.endpoint = f"http://127.0.0.1:{self._servers[0].server_port}"
        self.cdn = f"http://localhost:{self._servers[1].server_port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.close_connections()
            server.server_close()

    def lock(self, repository: str, *tokens: str, is_listed: bool = False) -> None:
        """Make the files of a repository (`datasets/org/name`) open to these tokens alone, and what the API says of it.

        Args:
            repository: models/ or datasets/, and its name.
            tokens: who may read it.
            is_listed: everybody may see which files there are, as with gated repositories on the hub.
        """
        self._tokens[repository] = set(tokens)
        self._listed = self._listed | {repository} if is_listed else self._listed - {repository}

    def break_next(
        self,
        matching: str,
        *,
        times: int = 1,
        status: int | None = None,
        retry_after: int | None = None,
        drop_after: int | None = None,
        ignore_range: bool = False,
        delay: float = 0,
    ) -> None:
        """Spoil the next answers to requests that hold `matching` in `cdn /datasets/... bytes=0-9`.

        Args:
            matching: a part of the host, path and range.
            times: how many answers.
            status: answer this, with `retry_after` seconds in its header, instead of the file.
            retry_after: see `status`.
            drop_after: close the connection after this many bytes of the body.
            ignore_range: send the whole file whatever range is asked.
            delay: wait so many seconds before the answer.
        """
        self._faults.append(Fault(matching, times, status, retry_after, drop_after, ignore_range, delay))

    def expire_addresses(self) -> None:
        """The CDN refuses the addresses that were handed out so far."""
        self.address_age += 1

    def bytes_sent(self, matching: str = "") -> int:
        """Bytes of the bodies that were sent to requests whose host and path hold `matching`."""
        return sum(request.bytes_sent for request in self.requests if matching in f"{request.host} {request.path}")

    def commit_of(self, repository: str, revision: str = "main") -> str:
        """The commit that a revision of a repository (`datasets/org/name`) is at: a hash of all its files."""
        folder = self._folder(repository, revision)
        digest = hashlib.sha1()
        for path in files_of(folder):
            digest.update(f"{path.relative_to(folder).as_posix()} {self.hashes(path)[0]}\n".encode())
        return digest.hexdigest()

    def find(self, repository: str, revision: str, *, token: str, is_listing: bool = False) -> tuple[Path, str]:
        """The folder of a revision, and its commit, for who brings this token."""
        if not (self.root / repository).is_dir():
            # The hub does not tell strangers what there is.
            raise Refused(404 if token else 401, "RepoNotFound", "Repository not found")
        allowed = self._tokens.get(repository)
        is_open = allowed is None or token in allowed or (is_listing and repository in self._listed)
        if not is_open:
            raise Refused(403 if token else 401, "GatedRepo", f"Access to {repository} is restricted.")
        names = ["main", *(unquote(path.name.split("@", 1)[1]) for path in self._revisions(repository))]
        for name in names:
            commit = self.commit_of(repository, name)
            if revision in (name, commit):
                return self._folder(repository, name), commit
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def take_fault(self, target: str) -> Fault | None:
        """The fault that is due for this request, counted."""
        with self._lock:
            for fault in self._faults:
                if fault.times > 0 and fault.matching in target:
                    fault.times -= 1
                    return fault
        return None

    def hashes(self, path: Path) -> tuple[str, str]:
        """Git's hash of a file, and its sha256."""
        status = path.stat()
        key = (path, status.st_size, status.st_mtime_ns)
        if key not in self._hashes:
            content = path.read_bytes()
            git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            self._hashes[key] = (git, hashlib.sha256(content).hexdigest())
        return self._hashes[key]

    def _folder(self, repository: str, revision: str) -> Path:
        return self.root / (repository if revision == "main" else f"{repository}@{quote(revision, safe='')}")

    def _revisions(self, repository: str) -> list[Path]:
        folder = self.root / repository
        return sorted(folder.parent.glob(f"{folder.name}@*"))


class _Server(ThreadingHTTPServer):
    """Its threads end with it: clients may keep their connections for longer."""

    daemon_threads = False

    def __init__(self, address: tuple[str, int], handler: type[HubHandler]) -> None:
        super().__init__(address, handler)
        self._connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def close_connections(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _serve(host: str, hub: HubServer, role: str) -> _Server:
    class Handler(HubHandler):
        pass

    Handler.hub, Handler.role = hub, role
    server = _Server((host, 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server
