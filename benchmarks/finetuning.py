"""Fine-tuning for sequence classification: `toolkit finetune sc` against the Hugging Face Trainer on the same files.

    python benchmarks/finetuning.py --model FOLDER --train FILE --test FILE
        [--steps 300] [--lr 5e-4] [--batch-rows 32] [--seeds 0 1 2] [--output RESULTS.jsonl]

FOLDER holds an encoder that `AutoModelForSequenceClassification` loads, FILEs are .tsv with the columns `text` and
`label`. The peer is what transformers' own example (run_classification.py) does: the stock class, the Trainer with its
default sampler, each batch padded to its longest text, fp32 on a CPU. Both sides get the same ids (checked first),
learning rate, schedule, optimizer settings, batch and steps, and answer the test file at the end. Each run is a process
of its own; sides take turns. One JSON row goes to benchmarks/results/finetuning.jsonl.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rows import apart, keep, parser_of


def parser_of_cells(benchmark: str, description: str | None) -> argparse.ArgumentParser:
    """Parser of what all cells have in common."""
    parser = parser_of(benchmark, description)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-rows", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    return parser


def settings_of(options: argparse.Namespace) -> Any:
    from toolkit.finetuning import get_task

    return get_task("sc").Settings(
        learning_rate=options.lr, seed=options.seed, steps=options.steps, batch_rows=options.batch_rows
    )


def run_ours(options: argparse.Namespace, output: Path) -> float:
    from toolkit.experiments.finetune import finetune

    result = finetune(
        "sc", options.model, train=options.train, test=options.test, output=output, settings=settings_of(options)
    )
    return result.test["accuracy"]


def peer_rows(options: argparse.Namespace, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Ids as the tokenizer gives them, and the labels, of a file."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    header, body = lines[0], lines[1:]
    text, label = header.index("text"), header.index("label")
    ids = tokenizer([row[text] for row in body], truncation=True).input_ids
    return [{"input_ids": one} for one in ids], [row[label] for row in body]


def check_same_ids(options: argparse.Namespace, lr: float) -> None:
    """Time nothing where the two sides do not read the same."""
    from toolkit.finetuning import Split, get_task, open_source

    task = get_task("sc")(settings_of(argparse.Namespace(**vars(options) | {"lr": lr, "seed": 0})))
    files = {Split.TRAIN: options.train, Split.TEST: options.test}
    features = task.encode(task.read(files), open_source(str(options.model)))
    for split, path in files.items():
        theirs, _ = peer_rows(options, path)
        if [row["input_ids"] for row in features[split]] != [row["input_ids"] for row in theirs]:
            raise SystemExit(f"{path}: the two sides would read different ids.")


def run_peer(options: argparse.Namespace, output: Path) -> float:
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    set_seed(options.seed)
    (train, train_labels), (test, test_labels) = (peer_rows(options, path) for path in (options.train, options.test))
    names = sorted(set(train_labels))
    for rows, labels in ((train, train_labels), (test, test_labels)):
        for row, label in zip(rows, labels, strict=True):
            row["labels"] = names.index(label)
    model = AutoModelForSequenceClassification.from_pretrained(
        options.model, num_labels=len(names), classifier_pooling="mean", dtype=torch.float32
    )
    settings = settings_of(options)
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_rows,
        per_device_eval_batch_size=options.batch_rows,
        learning_rate=options.lr,
        warmup_steps=round(settings.warmup_fraction * options.steps),
        adam_beta1=settings.adam_betas[0],
        adam_beta2=settings.adam_betas[1],
        adam_epsilon=settings.adam_eps,
        weight_decay=settings.weight_decay,
        seed=options.seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=train,
        data_collator=DataCollatorWithPadding(AutoTokenizer.from_pretrained(options.model)),
    )
    trainer.train()
    answers = trainer.predict(test).predictions.argmax(-1)
    trainer.save_model(str(output))
    return float((answers == [row["labels"] for row in test]).mean())


SIDES = {"ours": run_ours, "trainer": run_peer}


def run_side(side: str, options: argparse.Namespace, lr: float, seed: int) -> dict[str, float]:
    """Run one side in this process: its accuracy, its seconds and those of the process's CPU time."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        score = SIDES[side](argparse.Namespace(**vars(options) | {"lr": lr, "seed": seed}), Path(folder) / "out")
    seconds, usage = time.perf_counter() - started, os.times()
    return {"accuracy": score, "seconds": seconds, "cpu_seconds": usage.user + usage.system}


def main() -> None:
    parser = parser_of_cells("finetuning", __doc__)
    parser.add_argument("--lr", type=float, default=5e-4)
    options = parser.parse_args()
    check_same_ids(options, options.lr)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for seed in options.seeds:
        for side, results in found.items():
            results.append(apart(run_side, side, options, options.lr, seed))
            print(f"{side}, seed {seed}: {results[-1]}", flush=True)
    medians = {side: statistics.median(one["seconds"] for one in results) for side, results in found.items()}
    cpu = {side: statistics.median(one["cpu_seconds"] for one in results) for side, results in found.items()}
    ratios = {"ratio": medians["trainer"] / medians["ours"], "ratio_cpu": cpu["trainer"] / cpu["ours"]}
    same = {"steps": options.steps, "batch_rows": options.batch_rows, "train": options.train.name}
    keep(options, **same, **{name: round(ratio, 2) for name, ratio in ratios.items()}, wanted=1.5, runs=found)


if __name__ == "__main__":
    main()
