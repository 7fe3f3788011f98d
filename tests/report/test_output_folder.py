"""The folder of a report: what a later report removes, and what it leaves alone, whenever an earlier one was killed."""

import hashlib
from pathlib import Path

import pytest

from toolkit.core.errors import UserError
from toolkit.report import output_folder
from toolkit.report.output_folder import LIST_FILE, replace_report

FIRST = {"report.html": "1", "tables/a.md": "a", "mteb/x/nq.json": "x"}
SECOND = {"report.html": "2", "tables/b.md": "b"}


def _files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != LIST_FILE)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def test_what_an_earlier_report_wrote_is_removed_with_its_empty_folders(tmp_path: Path) -> None:
    replace_report(tmp_path / "out", FIRST)
    replace_report(tmp_path / "out", SECOND)
    assert _files(tmp_path / "out") == SECOND
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "tables", LIST_FILE}
    assert (tmp_path / "out" / LIST_FILE).read_text() == "".join(
        f"{hashlib.sha256(content.encode()).hexdigest()}  {path}\n" for path, content in SECOND.items()
    )


def test_files_of_others_stay(tmp_path: Path) -> None:
    """One that no report wrote, one that was edited since, and a link in place of one."""
    replace_report(tmp_path, FIRST | {"tables/c.md": "c"})
    (tmp_path / "tables/mine.md").write_text("mine")
    (tmp_path / "tables/a.md").write_text("edited")
    (tmp_path / "tables/c.md").rename(tmp_path / "c.md")
    (tmp_path / "tables/c.md").symlink_to(tmp_path / "c.md")
    replace_report(tmp_path, SECOND)
    mine = {"tables/mine.md": "mine", "tables/a.md": "edited", "tables/c.md": "c", "c.md": "c"}
    assert _files(tmp_path) == SECOND | mine


def test_a_list_that_was_tampered_with_reaches_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "beside.md").write_text("a")
    folder = tmp_path / "out"
    replace_report(folder, FIRST)
    digest = hashlib.sha256(b"a").hexdigest()
    lines = [f"{digest}  ../beside.md", f"{digest}  {tmp_path / 'beside.md'}", f"{digest}  tables", "nonsense", "\0"]
    (folder / LIST_FILE).write_text("\n".join(lines))
    replace_report(folder, SECOND)
    assert (tmp_path / "beside.md").read_text() == "a"
    assert _files(folder) == FIRST | SECOND


@pytest.mark.parametrize("num_writes", range(1, 5))
def test_a_report_that_was_killed_leaves_nothing_that_the_next_one_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_writes: int
) -> None:
    """Killed after each of its writes: the list, two files, the list again."""
    replace_report(tmp_path, FIRST)
    write, done = output_folder.atomic_write, 0

    def killed(path: Path, content: str | bytes) -> None:
        nonlocal done
        if done == num_writes:
            raise KeyboardInterrupt
        done += 1
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(output_folder, "atomic_write", killed)
        if num_writes < 4:
            with pytest.raises(KeyboardInterrupt):
                replace_report(tmp_path, SECOND)
        else:
            replace_report(tmp_path, SECOND)
    (tmp_path / ".report.html.0123abcd.partial").write_text("half")
    replace_report(tmp_path, {"report.html": "3"})
    assert _files(tmp_path) == {"report.html": "3"}


@pytest.mark.parametrize("path", ["../up.md", "linked/a.md", "linked/deeper/a.md"])
def test_nothing_is_written_outside(tmp_path: Path, path: str) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.mkdir()
    (folder / "linked").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"would lie outside .*Remove the link"):
        replace_report(folder, {"report.html": "1", path: "x"})
    assert _files(folder) == {}
    assert list(elsewhere.iterdir()) == []
    assert not (tmp_path / "up.md").exists()
