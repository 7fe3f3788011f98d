"""A run folder: where each of its files is, and how they are written."""

import contextlib
import os
import shutil
from pathlib import Path

from toolkit.core.errors import CorpusError, SettingsError
from toolkit.run.load import to_toml
from toolkit.run.settings import RunSettings


class RunFolder:
    """The files of one run.

    Attributes:
        path: the folder itself, `run.dir`.
        settings_file: run.toml, the resolved settings; a run file.
        tokenizer: copy of the corpus's tokenizer, from which checkpoints get theirs.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.settings_file = self.path / "run.toml"
        self.tokenizer = self.path / "tokenizer"

    def write_settings(self, settings: RunSettings) -> None:
        """Write run.toml, atomically: the file is the old one or the new one, never a part.

        Raises:
            SettingsError: it cannot be written.
        """
        temporary = self.path / f".{self.settings_file.name}.partial"
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(to_toml(settings))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.settings_file)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise SettingsError(
                f"could not write {self.settings_file}: {error.strerror}. Free space or choose another folder "
                "(run.dir); what was there before is unchanged."
            ) from error

    def keep_tokenizer(self, source: Path) -> None:
        """Copy the corpus's tokenizer here, so that checkpoints do not need the corpus folder.

        Raises:
            CorpusError: `source` cannot be read, or the copy cannot be written.
        """
        fresh, old = self.path / ".tokenizer.new", self.path / ".tokenizer.old"
        try:
            for leftover in (fresh, old):
                shutil.rmtree(leftover, ignore_errors=True)
            shutil.copytree(source, fresh)
            if self.tokenizer.exists():
                self.tokenizer.rename(old)
            fresh.rename(self.tokenizer)
        except (OSError, shutil.Error) as error:
            raise CorpusError(
                f"could not copy the tokenizer {source} to {self.tokenizer}: {error}. Make the first readable and the "
                "second writable."
            ) from error
        shutil.rmtree(old, ignore_errors=True)
