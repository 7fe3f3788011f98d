"""The hub's side of its HTTP protocol: how one request is answered; what it answers from is in hub_server.py."""

import hashlib
import json
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

if TYPE_CHECKING:
    from tests.support.hub_server import HubServer

_LARGE_BYTES = 1 << 20
_LARGE_ENDINGS = (".parquet", ".safetensors", ".bin", ".model")


@dataclass(frozen=True)
class Request:
    """One request, answered.

    Attributes:
        host: "hub" or "cdn".
        range: the Range header, or "".
        token: the bearer token it brought, or "".
        bytes_sent: bytes of the body that left.
    """

    host: str
    method: str
    path: str
    range: str
    token: str
    status: int
    bytes_sent: int


@dataclass
class Fault:
    """What is to go wrong with the next requests; `HubServer.break_next` explains the fields."""

    matching: str
    times: int
    status: int | None
    retry_after: int | None
    drop_after: int | None
    ignore_range: bool
    delay: float


class Refused(Exception):
    """An answer that is an error: status and the header that tells the client which."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def files_of(folder: Path) -> list[Path]:
    """All files below a folder, by path."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _is_large(path: Path) -> bool:
    return path.name.endswith(_LARGE_ENDINGS) or path.stat().st_size >= _LARGE_BYTES


class HubHandler(BaseHTTPRequestHandler):
    """One connection; answers until it is closed."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms for the head to be acknowledged
    hub: "HubServer"
    role: str

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the requests are kept."""

    @property
    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self._form = parse_qs(self.rfile.read(length).decode()) if length else {}
        self._fault = self.hub.take_fault(f"{self.role} {self.path} {self.headers.get('Range') or ''}")
        if self._fault is not None:
            time.sleep(self._fault.delay)
            if self._fault.status is not None:
                wait = self._fault.retry_after
                self._send(self._fault.status, b"", {} if wait is None else {"Retry-After": str(wait)})
                return
        try:
            self._route()
        except Refused as error:
            headers = {"X-Error-Code": error.code, "X-Error-Message": str(error)}
            self._send(error.status, json.dumps({"error": str(error)}).encode(), headers)

    do_HEAD = do_GET = do_POST = _answer

    def _route(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        encoded = urlsplit(self.path).path.strip("/").split("/")
        if self.role == "cdn":
            self._send_blob(parts)
        elif parts[0] != "api":
            is_dataset = parts[0] == "datasets"
            repository = "/".join(parts[:3]) if is_dataset else "/".join(["models", *parts[:2]])
            rest = encoded[4 if is_dataset else 3 :]
            self._resolve(repository, unquote(rest[0]), unquote("/".join(rest[1:])))
        elif parts[1] == "resolve-cache":
            self._send_cached(unquote("/".join(encoded[2:5])), encoded[5], unquote("/".join(encoded[6:])))
        else:
            self._describe("/".join(parts[1:4]), encoded[4:])

    def _describe(self, repository: str, rest: list[str]) -> None:
        """What the API says: about a repository, the files in a folder, or these paths."""
        what, revision = (rest[0], unquote(rest[1])) if len(rest) > 1 else ("revision", "main")
        folder, commit = self.hub.find(repository, revision, token=self._token, is_listing=True)
        if what == "tree":
            self._send_tree(folder, unquote("/".join(rest[2:])))
        elif what == "paths-info":
            paths = [folder / name for name in self._form.get("paths", [])]
            self._send_json([self._entry(folder, path) for path in paths if path.exists()])
        else:
            siblings = [{"rfilename": path.relative_to(folder).as_posix()} for path in files_of(folder)]
            name = repository.split("/", 1)[1]
            self._send_json({"id": name, "sha": commit, "private": False, "tags": [], "siblings": siblings})

    def _send_tree(self, folder: Path, below: str) -> None:
        inside = folder / below
        if not inside.is_dir():
            raise Refused(404, "EntryNotFound", f"{below} does not exist")
        query = {key: values[-1] for key, values in parse_qs(urlsplit(self.path).query).items()}
        is_recursive = query.get("recursive", "").lower() == "true"
        entries = sorted(inside.rglob("*") if is_recursive else inside.iterdir())
        first = int(query.get("cursor", "0"))
        last = first + self.hub.page_size
        headers = {}
        if last < len(entries):
            path = f"{urlsplit(self.path).path}?recursive={is_recursive}&cursor={last}"
            headers["Link"] = f'<{self.hub.endpoint}{path}>; rel="next"'
        self._send_json([self._entry(folder, path) for path in entries[first:last]], headers)

    def _entry(self, folder: Path, path: Path) -> dict[str, object]:
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            return {"type": "directory", "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0, "path": name}
        git, sha256 = self.hub.hashes(path)
        size = path.stat().st_size
        large = {"lfs": {"oid": sha256, "size": size, "pointerSize": 134}} if _is_large(path) else {}
        return {"type": "file", "oid": git, "size": size, "path": name, **large}

    def _resolve(self, repository: str, revision: str, name: str) -> None:
        folder, commit = self.hub.find(repository, revision, token=self._token)
        path = folder / name
        if not path.is_file():
            raise Refused(404, "EntryNotFound", f"{name} does not exist")
        git, sha256 = self.hub.hashes(path)
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(path.stat().st_size)}
        if _is_large(path):
            where = quote(f"/{path.relative_to(self.hub.root).as_posix()}")
            headers |= {
                "X-Linked-ETag": f'"{sha256}"',
                "Location": f"{self.hub.cdn}{where}?signature={sha256}-{self.hub.address_age}",
            }
            self._send(302, b"", headers)
            return
        where = f"/api/resolve-cache/{repository}/{commit}/{quote(name, safe='')}"
        self._send(307, b"", headers | {"ETag": f'"{git}"', "Location": where})

    def _send_cached(self, repository: str, commit: str, name: str) -> None:
        folder, _ = self.hub.find(repository, commit, token=self._token)
        self._send_file(folder / name, {"X-Repo-Commit": commit, "ETag": f'"{self.hub.hashes(folder / name)[0]}"'})

    def _send_blob(self, parts: list[str]) -> None:
        if self._token:
            # A signed address is access enough; storage refuses a second kind of credentials.
            raise Refused(400, "InvalidArgument", "Only one auth mechanism allowed")
        path = self.hub.root.joinpath(*parts)
        sha256 = self.hub.hashes(path)[1]
        if parse_qs(urlsplit(self.path).query).get("signature") != [f"{sha256}-{self.hub.address_age}"]:
            raise Refused(403, "AccessDenied", "The address is not signed for this file")
        self._send_file(path, {"ETag": f'"{sha256}"'})

    def _send_file(self, path: Path, headers: dict[str, str]) -> None:
        size = path.stat().st_size
        is_ignored = self._fault is not None and self._fault.ignore_range
        wanted = None if is_ignored else _byte_range(self.headers.get("Range") or "", size)
        headers |= {"Accept-Ranges": "bytes"}
        if wanted is None:
            self._send(200, path.read_bytes(), headers)
        elif wanted[0] >= size:
            self._send(416, b"", headers | {"Content-Range": f"bytes */{size}"})
        else:
            first, last = wanted
            with path.open("rb") as file:
                file.seek(first)
                body = file.read(last - first + 1)
            self._send(206, body, headers | {"Content-Range": f"bytes {first}-{last}/{size}"})

    def _send_json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        drop_after = self._fault.drop_after if self._fault is not None else None
        sent = b"" if self.command == "HEAD" else body[:drop_after]
        request = Request(
            self.role, self.command, self.path, self.headers.get("Range") or "", self._token, status, len(sent)
        )
        self.hub.requests.append(request)
        self.close_connection = drop_after is not None
        if self.command == "HEAD" and drop_after is not None:
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        try:
            self.end_headers()
            self.wfile.write(sent)
        except ConnectionError:
            self.close_connection = True


def _byte_range(header: str, size: int) -> tuple[int, int] | None:
    """First and last byte of a Range header, both included; None without one."""
    if not header.startswith("bytes="):
        return None
    first, last = header.removeprefix("bytes=").split("-")
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last or size - 1), size - 1)
