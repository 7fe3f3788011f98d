"""The shipped study `paper` in miniature: every block of it, a step for each thousand, on tiny models and toy tasks."""

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from tests.support.grids import write_data
from tests.support.runs import write_run
from toolkit.experiments.study.declaration import PRESETS

_THOUSANDS = re.compile(r"(\d+)k\b")
_SIZES = {"210m": "nano", "610m": "test", "1b": "17m"}
_BASE = """
precision = "fp32"
[run]
seed = 7
[model]
preset = "test"
[data]
train = "{folder}/corpus"
validation = "{folder}/validation"
sequence_length = 64
[[schedule]]
objective = "mlm"
steps = 42
[train]
global_batch_rows = 4
[lr]
peak = 1e-2
warmup_steps = 2
decay_steps = 2
[log]
every = 6
tensorboard = false
[eval]
every = 100
rows = 4
"""


def write_toy_paper(folder: Path, *, rates: list[float], seeds: list[int], of_family: int = 3) -> Path:
    """The study file below `folder`, with a base, a corpus and data; its folder is `folder`/study.

    Lengths are a thousandth; `of_family` tasks are taken of each family. Each data set of a family of tasks is the
    family's toy, so that NQ and MLDR train on what MS MARCO does here too.
    """
    write_run(folder)
    (folder / "test.toml").write_text(_BASE.format(folder=folder))
    raw = tomllib.loads((PRESETS / "paper.toml").read_text())
    study: dict[str, Any] = {"models": _small(raw["models"])}
    study["study"] = {"base": str(folder / "test.toml"), "dir": str(folder / "study")}
    study["set"] = {"checkpoint": {"every": 1000}}
    study["machine"] = {"threads": 1}
    study["grid"] = {"learning_rates": rates, "seeds": seeds, "steps": 2, "threads": 1}
    data = {kind: tomllib.loads(files) for kind, files in write_data(folder / "data").items()}
    for file in filter(Path.is_file, (folder / "data").rglob("*")):
        # Words that the corpus's tokenizer knows, as long as they were: answers are found by their place.
        file.write_text(re.sub(r"\bw([3-9]|[1-9]\d)\b", r"t\1", file.read_text()))
    taken = [[task for task in raw["task"] if task["kind"] == kind][:of_family] for kind in data]
    study["task"] = [
        {"name": task["name"], "kind": task["kind"], "batch_rows": 4, **data[task["kind"]]}
        for task in itertools.chain.from_iterable(taken)
    ]
    path = folder / "paper.toml"
    path.write_text(tomli_w.dumps(study))
    return path


def _small(value: Any) -> Any:
    """A block with lengths of a thousandth, and other sizes."""
    if isinstance(value, dict):
        return {
            key: [step // 1000 for step in below] if key == "keep" else 2 if key == "decay_steps" else _small(below)
            for key, below in value.items()
        }
    if isinstance(value, list):
        return [_small(each) for each in value]
    if not isinstance(value, str):
        return value
    size, _, rest = value.partition("-")
    if size in _SIZES:
        value = "-".join([_SIZES[size], *([rest] if rest else [])])
    return _THOUSANDS.sub(r"\1", value)
