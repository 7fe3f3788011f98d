"""Files on the hub, read in byte ranges over HTTP: only the bytes that the Parquet reader needs.

A file is resolved once, at the commit that was listed, to the URL that serves it. After a dropped connection the
request resumes after the last byte received.
"""

import threading
from collections.abc import Iterable
from urllib.parse import urlsplit

from tokenization.hub import endpoint, with_retries
from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.preprocess.readers.ranges import RangedFile
from toolkit.preprocess.sources.source import Source
from toolkit.storage.hub import hub_errors

_WAITS_SECONDS = (0.5, 1, 2, 4, 8)
_KEPT = "what is finished is kept"


class HubFile(RangedFile):
    """A file on the hub."""

    def __init__(self, source: Source, *, waits: Iterable[float] = _WAITS_SECONDS) -> None:
        super().__init__(source.num_bytes, self.fetch)
        self.source, self._waits = source, tuple(waits)
        self._lock, self._location = threading.Lock(), ""

    def fetch(self, start: int, stop: int) -> bytes:
        """Bytes start..stop - 1."""
        content, alternative = bytearray(), f"download the data set and give the folder; {_KEPT}"
        with hub_errors(f"the source {self.source.name}", alternative=alternative):
            with_retries(
                lambda: self._fetch_rest(content, start, stop),
                waits=self._waits,
                sleep=self.abandoned.wait,
                report=console().print,
            )
        return bytes(content)

    def _fetch_rest(self, content: bytearray, start: int, stop: int) -> None:
        wanted, problem = f"{start + len(content)}-{stop - 1}", ""
        location = self._locate()
        is_served = self._stream_into(content, location, wanted)
        if not (is_served or self._stream_into(content, self._locate(instead_of=location), wanted)):
            problem = f"{urlsplit(location).netloc} refuses access"
        elif start + len(content) != stop:
            problem = f"its bytes {wanted} arrived incomplete"
        if problem:
            raise UserError(f"could not download the source {self.source.name}: {problem}. Try again later; {_KEPT}.")

    def _stream_into(self, content: bytearray, location: str, wanted: str) -> bool:
        """Append these bytes; False if the URL has expired."""
        from huggingface_hub import constants
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        is_elsewhere = urlsplit(location).netloc != urlsplit(endpoint()).netloc
        # A URL of another host is signed; that host must not see the token.
        headers = build_hf_headers(token=False if is_elsewhere else None)
        headers |= {"Range": f"bytes={wanted}", "Accept-Encoding": "identity"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", location, headers=headers, timeout=timeout) as response:
            if is_elsewhere and response.status_code in (401, 403, 404):
                return False
            hf_raise_for_status(response)
            if response.headers.get("Content-Range") != f"bytes {wanted}/{self.source.num_bytes}":
                raise UserError(
                    f"could not download the source {self.source.name} in parts: {location} ignores byte ranges. "
                    "Download the data set (hf download) and give the folder."
                )
            for piece in response.iter_bytes():
                content += piece
        return True

    def _locate(self, *, instead_of: str = "") -> str:
        """The URL that serves the file: the known one, unless that is the one that has expired."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        with self._lock:
            if self._location == instead_of:
                owner, name, path = self.source.name.removeprefix("hub://").split("/", maxsplit=2)
                hub, options = endpoint(), {"repo_type": "dataset", "revision": self.source.revision}
                url = hf_hub_url(f"{owner}/{name}", path, endpoint=hub, **options)
                self._location = get_hf_file_metadata(url, endpoint=hub).location
            return self._location
