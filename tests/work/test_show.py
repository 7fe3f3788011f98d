"""The live view: lines without a terminal, a picture with lines above it on one."""

from collections.abc import Iterable
from io import StringIO

import pytest
from rich.console import Console

from toolkit.work import show
from toolkit.work.show import Line, shown, watch


class Counted:
    """A view whose looks are numbered; it is over at the third."""

    number = 0

    def look(self) -> None:
        self.number += 1

    def news(self) -> Iterable[Line]:
        return [Line(f"done {self.number}", is_news=False), Line(f"failed {self.number}")]

    def picture(self) -> str:
        return f"picture {self.number}"

    def is_over(self) -> bool:
        return self.number == 3


def test_without_a_terminal_all_is_told_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(Counted()) as look:
        look(("lost",))
        look(())
    assert capsys.readouterr().out.splitlines() == ["lost", "done 1", "failed 1", "done 2", "failed 2"]


def test_a_terminal_has_the_last_picture_below_what_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StringIO()
    monkeypatch.setattr(show, "console", lambda: Console(file=file, force_terminal=True, width=80, highlight=False))
    with shown(Counted()) as look:
        look(("lost",))
        look(())
    text = file.getvalue()
    assert text.index("lost") < text.index("failed 1") < text.index("failed 2") < text.rindex("picture 2")
    assert "done" not in text


def test_a_watch_ends_when_the_work_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(show, "_SECONDS_BETWEEN_PICTURES", 0)
    watch(Counted())
    assert capsys.readouterr().out.splitlines()[-2:] == ["failed 3", "picture 3"]
