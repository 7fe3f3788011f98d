"""The table of docs/performance.md on runs of many ranks, from the kept rows of `rehearsal.py`, before and after."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Row = dict[str, Any]
Figure = Callable[[Row], float]

_CASES = (
    "512 ranks: dp 512, zero1",
    "10,240 ranks: dp 10,240, zero1",
    "10,240 ranks: dp 320, tp 8, pp 4, pipeline",
)
_START = ("join_ranks", "check_shared_folder", "read_resolved", "own_checkpoint", "read_run", "check_same_inputs")


def table(rows: Sequence[Row]) -> str:
    """Markdown; a cell has the value before and after, or one where they are alike or nothing was mended."""
    found = [[_newest(rows, case, label) for label in ("before", "after")] for case in _CASES]
    lines = ["| of a rank, if nothing else is said | " + " | ".join(_CASES) + " |", "|---|" + "---|" * len(found)]
    for what, figure in _figures():
        cells = [list(dict.fromkeys(_shown(figure(row)) for row in pair)) for pair in found]
        if what.startswith(_NOT_MENDED):
            cells = [each[-1:] for each in cells]
        lines.append(f"| {what} | " + " | ".join(" → ".join(each) for each in cells) + " |")
    return "\n".join(lines)


def _newest(rows: Sequence[Row], case: str, label: str) -> Row:
    return [row for row in rows if (row["case"], row["label"]) == (case, label)][-1]


_NOT_MENDED = ("CPU seconds: DeepSpeed", "MB: imports", "MB: corpus", "open files", "looks at Python")


def _figures() -> Iterator[tuple[str, Figure]]:
    yield "process groups asked for", lambda row: row["ranks"][0]["exchanges"]["groups"]
    yield "CPU seconds: groups", lambda row: _cpu(row["ranks"][1], "join_ranks")
    yield "CPU seconds: all of the start up to the engine", lambda row: sum(_cpu(row["ranks"][1], n) for n in _START)
    yield "CPU seconds: DeepSpeed's engine", lambda row: _cpu(row["ranks"][1], "build_engine")
    yield "CPU seconds: host exchanges, start to first checkpoint", lambda row: _exchanges(row["ranks"][1])
    yield "the same, rank 0", lambda row: _exchanges(row["ranks"][0])
    yield "CPU ms a step: what all ranks say of their rows", _of_step
    yield "MB: imports", lambda row: _mb(row["ranks"][1], "imports")
    yield "MB: corpus of 100B tokens, its plans, the order", lambda row: _mb(row["ranks"][1], "read_run")
    yield "MB: groups", lambda row: _mb(row["ranks"][1], "join")
    yield "MB: host exchanges", lambda row: sum(_mb(row["ranks"][1], name) for name in _names(row["ranks"][1]))
    yield "open files at the end, sockets not counted", lambda row: row["ranks"][1]["open_files"]
    yield "looks at the corpus, first rank of a machine", lambda row: _looks(row["ranks"][0], "read_run", "corpus")
    yield "looks at the corpus, other ranks", lambda row: _looks(row["ranks"][1], "read_run", "corpus")
    yield "looks at the corpus, all ranks, 8 on a machine", _of_all
    yield "looks at Python and its packages", lambda row: _looks(row["ranks"][1], "", "environment")
    yield "files of a checkpoint", lambda row: row["checkpoint"]["files"]
    yield "KB of its manifest", lambda row: row["checkpoint"]["manifest_bytes"] / 1e3
    yield "CPU seconds to make it visible, rank 0", lambda row: _cpu(row["ranks"][0], "save: finish")
    # Before, all ranks did what the first one did, and the last was not rehearsed.
    yield (
        "its files opened there by a rank of the first copy",
        lambda row: _looks(row["resumed"][0], "load", "checkpoints"),
    )
    yield (
        "its files opened there by a rank of another copy",
        lambda row: _looks(row["resumed"][-1], "load", "checkpoints"),
    )
    yield (
        "CPU seconds to load it at another number of ranks, 10,240 or 512",
        lambda row: _cpu(row["resumed"][-1], "load_checkpoint"),
    )


def _cpu(rank: Row, stage: str) -> float:
    return float(rank["stages"][stage]["cpu_s"])


def _mb(rank: Row, stage: str) -> float:
    return max(0.0, float(rank["stages"][stage]["resident_mb"]))


def _names(rank: Row) -> list[str]:
    """Exchanges of objects and flags, but not those of each step."""
    return [
        name
        for name in rank["stages"]
        if name in ("exchange: gather", "exchange: gather_on_first", "exchange: sum_counts")
    ]


def _exchanges(rank: Row) -> float:
    return sum(_cpu(rank, name) for name in _names(rank))


def _of_step(row: Row) -> float:
    stages = row["ranks"][1]["stages"]
    each = (stages[f"exchange: {name}"] for name in ("_gather_numbers", "one_of_each_copy"))
    return sum(1e3 * stage["cpu_s"] / stage["calls"] for stage in each)


def _looks(rank: Row, stage: str, place: str) -> float:
    names = (name.split(" / ") for name in rank["files"])
    return sum(
        rank["files"][" / ".join(name)] for name in names if name[0].startswith(stage) and name[1].startswith(place)
    )


def _of_all(row: Row) -> float:
    machines = -(-row["world_size"] // 8)
    first, other = (_looks(row["ranks"][number], "read_run", "corpus") for number in (0, 1))
    return machines * first + (row["world_size"] - machines) * other


def _shown(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.005 else "0"
