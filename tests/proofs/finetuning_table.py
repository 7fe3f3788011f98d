"""What pretraining is worth to each family of tasks, against twins with random weights.

    python -m tests.proofs.finetuning_table --data FOLDER --model NAME=FOLDER... [--families sc tc qa ir]
        [--seeds 0 1 2] [--rows RESULTS.jsonl] [--write docs/finetuning.md]

FOLDER of `--data` holds labelled sets in their published form: sc/sst2, tc/conll2003, qa/squad-v1.1, ir/scifact. Every
cell trains for the same few steps, from the encoder's weights and from weights drawn from the seed. The table gives
means over seeds and 95 % intervals by Student's t; cells that `--rows` has already are not run again.
"""

import argparse
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scipy import stats

from tests.proofs.pages import made_by, write_between

BEGIN, END = "<!-- families: made by python -m tests.proofs.finetuning_table -->", "<!-- end of families -->"


@dataclass(frozen=True)
class Case:
    """A data set of a family, and how long it is trained on."""

    family: str
    name: str
    train: str
    test: str
    settings: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case(
        "sc", "SST-2", "sc/sst2/train.tsv", "sc/sst2/dev.tsv",
        {"text_columns": ("sentence",), "learning_rate": 5e-4, "steps": 300},
    ),
    Case(
        "tc", "CoNLL-2003", "tc/conll2003/eng.train", "tc/conll2003/eng.testb", {"learning_rate": 5e-4, "steps": 300}
    ),
    Case(
        "qa", "SQuAD, 17 articles", "qa/squad-v1.1/articles-sample.json", "qa/squad-v1.1/xquad.en.json",
        {"learning_rate": 5e-4, "steps": 300},
    ),
    Case(
        "ir", "SciFact", "ir/scifact", "ir/scifact",
        {"learning_rate": 3e-4, "steps": 100, "batch_rows": 16, "max_length": 128},
    ),
)  # fmt: skip
_HELD_OUT = ("Genghis_Khan", "Huguenot", "Immune_system")
"""Articles of the training sample that stand in the test file too."""


def cell(case: Case, model: str, folder: str, *, data: Path, seed: int, is_random: bool) -> dict[str, Any]:
    """Run one cell; its scores."""
    from toolkit.finetuning import Initialization, get_task
    from toolkit.workflows.finetune import finetune

    initialization = Initialization.RANDOM if is_random else Initialization.PRETRAINED
    with tempfile.TemporaryDirectory() as scratch:
        places = _places(case, data, Path(scratch))
        result = finetune(
            case.family,
            folder,
            train=places[0],
            test=places[1],
            output=Path(scratch) / "out",
            settings=get_task(case.family).Settings(seed=seed, **case.settings),
            initialization=initialization,
        )
    key = {"family": case.family, "model": model, "seed": seed, "is_random": is_random}
    return key | {"metric": result.metric, "test": result.test, "settings": case.settings}


def _places(case: Case, data: Path, scratch: Path) -> tuple[Path, Path]:
    if case.family != "qa":
        return data / case.train, data / case.test
    sample = json.loads((data / case.train).read_text(encoding="utf-8"))
    sample["data"] = [article for article in sample["data"] if article["title"] not in _HELD_OUT]
    train = scratch / "squad.json"
    train.write_text(json.dumps(sample), encoding="utf-8")
    return train, data / case.test


def interval(values: list[float]) -> str:
    """Mean and half the 95 % interval, in percent."""
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{100 * statistics.fmean(values):.1f} ± {100 * half:.1f}"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each family and model."""
    lines = ["| family | data | model | steps | metric | pretrained | random twins |", "|---|---|---|---|---|---|---|"]
    for case in CASES:
        for model in dict.fromkeys(row["model"] for row in rows if row["family"] == case.family):
            cells = [row for row in rows if (row["family"], row["model"]) == (case.family, model)]
            scores = [
                [row["test"][row["metric"]] for row in cells if row["is_random"] is which] for which in (False, True)
            ]
            metric, steps = cells[0]["metric"], case.settings["steps"]
            ours, twins = (interval(values) if len(values) > 1 else "" for values in scores)
            lines.append(f"| `{case.family}` | {case.name} | {model} | {steps} | {metric} | {ours} | {twins} |")
    return "\n".join(lines)


def missing_cells(
    options: argparse.Namespace, done: list[dict[str, Any]]
) -> Iterator[tuple[Case, str, str, int, bool]]:
    """What was not run with these settings: case, model's name and folder, seed, whether weights are random."""
    for case in (case for case in CASES if case.family in options.families):
        settings = json.loads(json.dumps(case.settings))
        for name, folder in (model.split("=", 1) for model in options.model):
            for seed, is_random in itertools.product(options.seeds, (False, True)):
                wanted = {"family": case.family, "model": name, "seed": seed, "is_random": is_random}
                wanted |= {"settings": settings}
                if not any(row | wanted == row for row in done):
                    yield case, name, folder, seed, is_random


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--families", nargs="+", default=[case.family for case in CASES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=Path, default=Path("benchmarks/results/finetuning_families.jsonl"))
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows.exists() else []
    for case, name, folder, seed, is_random in list(missing_cells(options, done)):
        row = cell(case, name, folder, data=options.data, seed=seed, is_random=is_random)
        done.append(row)
        print({key: row[key] for key in ("family", "model", "seed", "is_random", "test")}, flush=True)
        with options.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    made = made_by("tests.proofs.finetuning_table", packages=("torch", "transformers"))
    text = f"{made}: means over {len(options.seeds)} seeds, in percent, with 95 % intervals.\n\n{table(done)}"
    print(text)
    if options.write is not None:
        write_between(options.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
