"""How does each command end? `python -m tests.proofs.endings [--write PAGE]`.

Each is run three times on tiny inputs: interrupted by SIGINT (Ctrl-C), by SIGTERM, and, started again after these two,
to its end. The table has its last lines as they are printed, and the exit code where that is not 0.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.proofs.pages import made_by, write_between
from tests.support.grids import write_grid
from tests.support.runs import write_run
from tests.support.text import sample_documents, tiny_tokenizer, write_lines

BEGIN, END = "<!-- endings: made by python -m tests.proofs.endings -->", "<!-- end of endings -->"
_STUDY = '[study]\nbase = "run.toml"\ndir = "study"\n[[models]]\naxes.schedule = ["clm 12", "clm 6 + mlm 6"]\n'
_LONGEST_LINE = 160
_USUAL = "`interrupted; the same command starts again` ({})"
"""How a command ends that keeps nothing of what was interrupted, by exit code: left out of the table."""


@dataclass(frozen=True)
class Line:
    """A command line, and after how many seconds of CPU time it is interrupted: by then it is at work."""

    words: str
    seconds: float = 1.0


LINES = (
    Line("quickstart", 40.0),
    Line("tokenizer train texts.jsonl --vocab-size 2000 --output tokenizer"),
    Line("preprocess texts.jsonl --tokenizer tiny --output data/corpus --holdout 0.01"),
    Line("adopt corpus/*.bin --tokenizer tiny --output data/adopted", 0.6),
    Line("train run.toml", 7.0),
    Line("train run.toml --set run.dir=short --until 4", 3.0),
    Line("doctor run.toml", 4.0),
    Line("branch run --step 20 --config tail.toml --output runs/tail", 0.8),
    Line("merge run --steps all --output merged", 1.0),
    Line("convert --to-hf run encoder", 1.5),
    Line("convert --to-hf run decoder --form causal", 1.5),
    Line("convert --from-hf encoder imported", 1.5),
    Line("finetune sc encoder --train data/train.jsonl --test data/test.jsonl --steps 20 --output tuned", 4.0),
    Line("predict tuned/model data/test.jsonl --output predicted", 2.0),
    Line("score decoder --pairs pairs.jsonl --output scored", 2.0),
    Line("grid out.toml --workers 1", 7.0),
    Line("study study.toml", 9.0),
    Line("report out", 1.0),
    Line("inspect run", 0.6),
    Line("verify run", 0.6),
)


def lay_down(folder: Path) -> None:
    """What the lines name, below the working folder."""
    write_run(folder, phase_steps=20)
    text = (folder / "run.toml").read_text().replace(f"{folder}/", "")
    (folder / "run.toml").write_text(text + "[checkpoint]\nevery = 10\nkeep_every = 10\n")
    (folder / "tail.toml").write_text('[[schedule]]\nobjective = "mlm"\nsteps = 10\n')
    (folder / "study.toml").write_text(_STUDY)
    tiny_tokenizer(folder / "tiny")
    texts = sample_documents(4000)
    write_lines(folder / "texts.jsonl", [{"text": text} for text in texts])
    pairs = [{"sentence_good": f"a b c {n}", "sentence_bad": f"c b a {n}", "UID": "order"} for n in range(8)]
    write_lines(folder / "pairs.jsonl", pairs)
    write_grid(folder, kinds=("sc",), rates=(1e-3,), seeds=(0, 1), steps=10)
    grid = folder / "out.toml"
    grid.write_text(grid.read_text().replace(f"{folder}/", ""))


def ended(line: Line, number: signal.Signals | None) -> str:
    """The last lines of a command, and its exit code, as a cell of the table.

    One that has ended before the signal is not interrupted: the cell says so.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", *_expanded(line.words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # What a shell starts in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    if number is not None:
        while process.poll() is None and _cpu_seconds(process.pid) < line.seconds:
            time.sleep(0.05)
        if process.poll() is not None:
            return "over before the signal"
        process.send_signal(number)
    printed, _ = process.communicate()
    return cell(printed, process.returncode)


def cell(printed: str, code: int) -> str:
    """The last line that is not indented, with the indented ones after it; `code` where it is not 0."""
    lines = [line.rstrip().replace("|", "\\|") for line in printed.splitlines() if line.strip()]
    first = next((at for at in range(len(lines) - 1, -1, -1) if not lines[at].startswith(" ")), 0)
    shown = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in lines[first:]]
    return "<br>".join(f"`{line.strip()}`" for line in shown) + (f" ({code})" if code else "")


def table(head: str, rows: list[list[str]]) -> list[str]:
    """Lines in Markdown, of a command with its end, and its ends after both signals, per row."""
    usual = (_USUAL.format(130), _USUAL.format(143))
    shown = [[f"`{words}`", end, *("" if cell in usual else cell for cell in stopped)] for words, end, *stopped in rows]
    return [
        f"{head}; the exit code in brackets where it is not 0. An empty cell: {_USUAL.format('130 or 143')}.",
        "",
        "| `toolkit ...` | at its end | Ctrl-C | SIGTERM |",
        "|---|---|---|---|",
        *(f"| {' | '.join(cells)} |" for cells in shown),
    ]


def _cpu_seconds(pid: int) -> float:
    """Of a process and those that it has started, so far."""
    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += sum(each.cpu_times()[:2])
    return total


def _expanded(words: str) -> list[str]:
    return [path for word in shlex.split(words) for path in ([*map(str, Path().glob(word))] if "*" in word else [word])]


def main() -> int:
    """Run all, print the table, and leave with 1 where a command did not reach its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the page's markers")
    options = parser.parse_args()
    page = options.write and options.write.absolute()
    head = made_by("tests.proofs.endings", packages=("deepspeed", "torch"))
    rows = []
    with tempfile.TemporaryDirectory(prefix="endings-") as folder:
        os.chdir(folder)
        lay_down(Path(folder))
        for line in LINES:
            cells = [ended(line, number) for number in (signal.SIGINT, signal.SIGTERM, None)]
            rows.append([line.words, cells[2], *cells[:2]])
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
        os.chdir("/")
    if page is not None:
        write_between(page, BEGIN, END, "\n".join(table(head, rows)))
    return 0 if all(not row[1].endswith(")") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
