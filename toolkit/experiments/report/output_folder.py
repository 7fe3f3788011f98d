"""The folder of a report, whose files are replaced together."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from toolkit.core.errors import SettingsError, UserError
from toolkit.core.files import check_folder

PAGE = "report.html"
# Parts of a report, in the order in which they replace those of an earlier report. The page comes first: it marks the
# folder as a report's, even after a kill.
_PARTS = (PAGE, "tables", "figures")
_UNFINISHED = ".report.partial"


def check_output_folder(folder: Path) -> None:
    """Raise an error if `folder` is a file, or has files but no report; it need not exist."""
    check_folder(folder, "--output")
    found = {path.name for path in folder.iterdir()} - {_UNFINISHED} if folder.exists() else set()
    if found and PAGE not in found:
        raise SettingsError(
            f"the output folder {folder} holds other files (it has no {PAGE}). Choose a new folder, or that of a "
            "report, which is replaced (--output)."
        )


def replace_report(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write the files of a report, and then remove those of an earlier one.

    Other files in the folder stay.
    """
    unfinished = folder / _UNFINISHED
    try:
        # May remain from a killed report. It is inside the folder, which may be a separate file system.
        shutil.rmtree(unfinished, ignore_errors=True)
        for path, content in files.items():
            target = unfinished / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        for part in _PARTS:
            if (folder / part).is_dir():
                shutil.rmtree(folder / part)
            if (unfinished / part).exists():
                (unfinished / part).replace(folder / part)
        unfinished.rmdir()
    except OSError as error:
        raise UserError(
            f"could not write {error.filename or folder}: {error.strerror or error}. Free space, or choose another "
            "folder (--output)."
        ) from error
