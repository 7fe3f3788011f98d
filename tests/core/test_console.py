"""What is printed is what was said, and where nothing can be printed the work goes on."""

import os
import subprocess
import sys

import pytest

from toolkit.cli.exit_codes import print_error
from toolkit.core.console import console, facts, survive_lost_output


def test_square_brackets_are_text(capsys):
    console().print("mask token [unused19], in a[red]/b[/red] :smile:")
    assert capsys.readouterr().out == "mask token [unused19], in a[red]/b[/red] :smile:\n"


def test_a_table_in_a_log_has_a_line_for_each_row_and_no_blanks_behind(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = facts()
    table.add_row("short", "value")
    table.add_row("samples of the text", "word " * 40 + "end")
    console().print(table)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "short                value"
    assert second == "samples of the text  " + "word " * 40 + "end"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc é 🙂\u00a0", "a\tb\nc é 🙂\u00a0"),
        ("\x1b]0;title\x07 \x1b[2J \r \x9b1m \u202e \udc80", r"\x1b]0;title\x07 \x1b[2J \r \x9b1m \u202e \udc80"),
        ("s3://me:secret@host/a@b ftp:/me:secret@host", "s3://...@host/a@b ftp:/...@host"),
        ("http://host:80/a@b", "http://host:80/a@b"),
    ],
)
def test_a_terminal_obeys_nothing_that_is_printed_and_sees_no_password(capsys, text, shown):
    print_error(text)
    assert capsys.readouterr().err == f"error: {shown}\n"
    table = facts()
    table.add_row(text.partition("\n")[0].replace("\t", ""), "value")
    console().print(table)
    assert capsys.readouterr().out == shown.partition("\n")[0].replace("\t", "") + "  value\n"


_PRINTS = """
import sys
from toolkit.core.console import progress, survive_lost_output
survive_lost_output()
input()
with progress("work", total=2, unit="steps") as shown:
    for number in range(3):
        shown.say(f"line {number}")
print("left in the buffer", end="")
"""


def _run(stdout, stderr=subprocess.PIPE, *options):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, *options, "-c", _PRINTS]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, text=True)


@pytest.mark.parametrize("options", [[], ["-u"]], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(("place", "reason"), [("pipe", "Broken pipe"), ("disk", "No space left on device")])
def test_lost_output_ends_nothing_and_is_said_once(place, reason, options):
    """The second reason is of a disk that is full; the device stands for it."""
    with open("/dev/full", "w") as full:
        process = _run(full if place == "disk" else subprocess.PIPE, subprocess.PIPE, *options)
    if process.stdout is not None:
        process.stdout.close()
    process.stdin.write("\n")
    process.stdin.close()
    assert process.stderr.read() == f"standard output is lost ({reason}); the run continues\n"
    assert process.wait() == 0


def test_with_nothing_left_to_print_on_the_exit_code_stays():
    reading, writing = os.pipe()
    process = _run(writing, writing)
    os.close(writing)
    os.close(reading)
    process.communicate("\n")
    assert process.returncode == 0


def test_a_disk_that_has_room_again_gets_later_lines(capsys, monkeypatch):
    class Disk:
        lines, is_full = [], True

        def write(self, text):
            if self.is_full:
                raise OSError(28, "No space left on device")
            self.lines.append(text)

    disk = Disk()
    monkeypatch.setattr(sys, "stdout", disk)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    survive_lost_output()
    sys.stdout.write("first")
    disk.is_full = False
    sys.stdout.write("second")
    assert disk.lines == ["second"]
    assert capsys.readouterr().err.count("standard output is lost") == 1
