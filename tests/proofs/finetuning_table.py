"""What pretraining is worth to each family of tasks, against twins with random weights.

    python -m tests.proofs.finetuning_table --data FOLDER --model NAME=FOLDER[=RATES]...
        [--families sc tc qa ir] [--seeds 0 1 2] [--rows RESULTS.jsonl] [--write docs/finetuning.md]

FOLDER of `--data` holds labelled sets in their published form: sc/sst2, tc/conll2003, qa/squad-v1.1, ir/scifact. Every
cell trains for the same few steps, from the encoder's weights and from weights drawn from the seed. For both, the
learning rate is that of RATES (by default 1e-4,3e-4,1e-3) with the best validation score of the first seed. The table
gives means over seeds and 95 % intervals by Student's t; cells that `--rows` has already are not run again.
"""

import argparse
import gzip
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scipy import stats

from tests.proofs.pages import made_by, write_between

BEGIN, END = "<!-- families: made by python -m tests.proofs.finetuning_table -->", "<!-- end of families -->"
RATES = (1e-4, 3e-4, 1e-3)
_OF_THE_TEST = ("Genghis_Khan", "Huguenot", "Immune_system")
"""Articles of the SQuAD sample that stand in the test file too."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A data set of a family, and how long it is trained on."""

    family: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "sc": Case("sc", "SST-2", {"text_columns": ["sentence"], "steps": 300}),
    "tc": Case("tc", "CoNLL-2003", {"steps": 300, "batch_rows": 16}),
    "qa": Case("qa", "SQuAD, 15 articles", {"steps": 300, "batch_rows": 8}),
    "ir": Case("ir", "SciFact", {"steps": 100, "batch_rows": 16, "max_length": 128}),
}


def split_files(family: str, data: Path, scratch: Path) -> dict[str, Path]:
    """Train, validation and test; where the set has only two of them, a part of its training examples validates."""
    if family == "tc":
        parts = {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"}
        return {split: data / "tc/conll2003" / name for split, name in parts.items()}
    if family == "sc":
        header, *rows = (data / "sc/sst2/train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        files = {"train": scratch / "train.tsv", "validation": scratch / "validation.tsv"}
        for split, part in {"train": rows[:-1000], "validation": rows[-1000:]}.items():
            files[split].write_text(header + "".join(part), encoding="utf-8")
        return files | {"test": data / "sc/sst2/dev.tsv"}
    if family == "qa":
        sample = json.loads((data / "qa/squad-v1.1/articles-sample.json").read_text(encoding="utf-8"))
        articles = [article for article in sample["data"] if article["title"] not in _OF_THE_TEST]
        files = {"train": scratch / "train.json", "validation": scratch / "validation.json"}
        for split, part in {"train": articles[:-2], "validation": articles[-2:]}.items():
            files[split].write_text(json.dumps(sample | {"data": part}), encoding="utf-8")
        return files | {"test": data / "qa/squad-v1.1/xquad.en.json"}
    source = data / "ir/scifact"
    (scratch / "qrels").mkdir()
    (scratch / "corpus.jsonl").write_bytes(gzip.decompress((source / "corpus.jsonl.gz").read_bytes()))
    (scratch / "queries.jsonl").write_bytes((source / "queries.jsonl").read_bytes())
    header, *rows = (source / "qrels/train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    queries = list(dict.fromkeys(row.split("\t")[0] for row in rows))
    for name, chosen in {"train": queries[:-200], "dev": queries[-200:]}.items():
        kept = [row for row in rows if row.split("\t")[0] in set(chosen)]
        (scratch / f"qrels/{name}.tsv").write_text(header + "".join(kept), encoding="utf-8")
    (scratch / "qrels/test.tsv").write_bytes((source / "qrels/test.tsv").read_bytes())
    return dict.fromkeys(("train", "validation", "test"), scratch)


def run_cell(key: Row, folder: str, files: dict[str, Path], scratch: Path) -> Row:
    """One cell; its key and its scores."""
    from toolkit.experiments.finetune import finetune
    from toolkit.finetuning import Initialization, get_task

    values = key["settings"] | {"seed": key["seed"], "learning_rate": key["learning_rate"]}
    result = finetune(
        key["family"],
        folder,
        train=files["train"],
        validation=files["validation"],
        test=files["test"],
        output=scratch / "out",
        settings=get_task(key["family"]).Settings.model_validate(values, strict=False),
        initialization=Initialization.RANDOM if key["is_random"] else Initialization.PRETRAINED,
    )
    return key | {"metric": result.metric, "validation": result.validation, "test": result.test}


class Cells:
    """Those that were run, and those that are."""

    def __init__(self, path: Path, data: Path) -> None:
        self._path, self._data = path, data
        self.rows: list[Row] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def scores(
        self, case: Case, model: str, folder: str, *, is_random: bool, seeds: list[int], rates: Sequence[float]
    ) -> list[Row]:
        """Rows of all seeds at the rate that the first one's validation chose."""
        first = [self._row(case, model, folder, is_random, seeds[0], rate) for rate in rates]
        best = max(first, key=lambda row: (row["validation"][row["metric"]], -row["learning_rate"]))
        rate = best["learning_rate"]
        return [best, *(self._row(case, model, folder, is_random, seed, rate) for seed in seeds[1:])]

    def _row(self, case: Case, model: str, folder: str, is_random: bool, seed: int, rate: float) -> Row:
        key: Row = {"family": case.family, "model": model, "is_random": is_random, "seed": seed}
        key |= {"learning_rate": rate, "settings": case.settings}
        for row in self.rows:
            if row | key == row:
                return row
        with tempfile.TemporaryDirectory() as scratch:
            files = split_files(case.family, self._data, Path(scratch))
            row = run_cell(key, folder, files, Path(scratch))
        self.rows.append(row)
        print({name: row[name] for name in (*key, "validation", "test") if name != "settings"}, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return row


def interval(values: list[float]) -> str:
    """Mean and half the 95 % interval, in percent."""
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{100 * statistics.fmean(values):.1f} ± {100 * half:.1f}"


def table_line(case: Case, model: str, pretrained: list[Row], twins: list[Row]) -> str:
    """A line of Markdown."""
    metric = pretrained[0]["metric"]
    ours, theirs = ([row["test"][metric] for row in rows] for rows in (pretrained, twins))
    gains = [own - other for own, other in zip(ours, theirs, strict=True)]
    rates = f"{pretrained[0]['learning_rate']:g}, {twins[0]['learning_rate']:g}"
    shape = f"{case.settings['steps']} of {case.settings.get('batch_rows', 32)}"
    cells = [f"`{case.family}`", case.name, model, shape, rates, f"`{metric}`", *map(interval, (ours, theirs, gains))]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FOLDER[=RATES]")
    parser.add_argument("--families", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=Path, default=Path("benchmarks/results/finetuning_families.jsonl"))
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if len(options.seeds) < 2:
        parser.error("one seed has no interval: give --seeds two or more.")
    cells = Cells(options.rows, options.data)
    lines = [
        "| family | data | model | steps | rates | metric | pretrained | random twins | gain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for family in options.families:
        for model, folder, *given in (model.split("=") for model in options.model):
            rates = [float(rate) for rate in given[0].split(",")] if given else RATES
            both = [
                cells.scores(CASES[family], model, folder, is_random=which, seeds=options.seeds, rates=rates)
                for which in (False, True)
            ]
            lines.append(table_line(CASES[family], model, *both))
    made = made_by("tests.proofs.finetuning_table", packages=("torch", "transformers"))
    table = "\n".join(lines)
    text = f"{made}: means over {len(options.seeds)} seeds, in percent, with 95 % intervals.\n\n{table}"
    print(text)
    if options.write is not None:
        write_between(options.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
