"""The folder of a report: what a later report replaces, and which folders it refuses."""

import shutil
from pathlib import Path

import pytest

from toolkit.core.errors import SettingsError, UserError
from toolkit.experiments.report.output_folder import check_output_folder, replace_report

FIRST = {"report.html": "1", "tables/a.md": "a", "figures/x.svg": "x"}
SECOND = {"report.html": "2", "tables/b.md": "b"}


def _files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def test_an_earlier_report_is_replaced_with_its_folders(tmp_path: Path) -> None:
    replace_report(tmp_path / "out", FIRST)
    (tmp_path / "out/mine.md").write_text("mine")
    check_output_folder(tmp_path / "out")
    replace_report(tmp_path / "out", SECOND)
    assert _files(tmp_path / "out") == SECOND | {"mine.md": "mine"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "tables", "mine.md"}


@pytest.mark.parametrize("name", ["config.json", "tables/mine.csv"])
def test_a_folder_with_other_files_is_refused(tmp_path: Path, name: str) -> None:
    check_output_folder(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(SettingsError, match=r"holds other files .*Choose a new folder"):
        check_output_folder(tmp_path)


def test_a_report_that_does_not_fit_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was written of it is not in the way of the next."""
    replace_report(tmp_path, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", _full_after(1))
        with pytest.raises(UserError, match=r"could not write .*: No space left on device\. Free space"):
            replace_report(tmp_path, SECOND)
    assert _files(tmp_path) == FIRST | {".report.partial/report.html": "2"}
    replace_report(tmp_path, SECOND)
    assert _files(tmp_path) == SECOND


def _full_after(number: int):
    write, done = Path.write_bytes, []

    def write_bytes(path: Path, content: bytes) -> int:
        if len(done) == number:
            raise OSError(28, "No space left on device", str(path))
        done.append(path)
        return write(path, content)

    return write_bytes


@pytest.mark.parametrize("num_removed", [0, 1])
def test_a_report_that_was_killed_while_it_replaced_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_removed: int
) -> None:
    replace_report(tmp_path, FIRST)
    remove, removed = shutil.rmtree, []

    def killed(path: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors and len(removed) == num_removed:
            raise KeyboardInterrupt
        removed.extend([] if ignore_errors else [path])
        remove(path, ignore_errors=ignore_errors)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            replace_report(tmp_path, SECOND)
    check_output_folder(tmp_path)
    replace_report(tmp_path, {"report.html": "3"})
    assert _files(tmp_path) == {"report.html": "3"}


def test_nothing_is_removed_through_a_link(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.md").write_text("mine")
    replace_report(folder, {"report.html": "1"})
    (folder / "tables").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"could not write .*symbolic link"):
        replace_report(folder, SECOND)
    assert _files(elsewhere) == {"mine.md": "mine"}
