"""A decoder as the start of an encoder, against random weights: a toy answer, by the whole path that users take.

    python benchmarks/adaptation.py [--decoder-steps 600] [--steps 120] [--seeds 0 1 2] [--work DIR]

A decoder of 3.1M parameters is trained with CLM on the bundled Wikipedia text and exported to Hugging Face. Its
tokenizer forgets its mask token, so that the folder is like one of a stranger. It is then imported, which adds a mask
token, and trained further with MLM; beside it the same shape from random weights, on the same rows with the same masks,
steps, batch and learning rate. Validation loss of MLM in nats per masked token, for each seed of the order of rows and
of the masks; there is one decoder, which has seen `--decoder-steps` steps that the other arm has not.

One JSON row for each arm, seed and evaluation goes to benchmarks/results/adaptation.jsonl, and a figure to
docs/figures/adaptation.svg.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "toolkit" / "quickstart"
RESULTS = ROOT / "benchmarks" / "results" / "adaptation.jsonl"
FIGURE = ROOT / "docs" / "figures" / "adaptation.svg"
ARMS = {"from the decoder": "tab:blue", "from random weights": "tab:orange"}
COMMON = {
    "precision": "fp32",
    "data": {"sequence_length": 128},
    "train": {"global_batch_rows": 8, "micro_batch_rows": 8},
    "log": {"every": 10, "tensorboard": False},
    "eval": {"rows": 64},
}


def toolkit(*arguments: object) -> None:
    command = [sys.executable, "-m", "toolkit.cli", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def train(work: Path, name: str, *overrides: str, objective: str, steps: int, corpus: Path, every: int) -> Path:
    """Train for `steps` steps; returns the run's folder."""
    common = [
        f"{group}.{key}={json.dumps(value)}"
        for group, keys in COMMON.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    ]
    options = [
        f"run.dir={work / name}",
        f"precision={COMMON['precision']}",
        *common,
        f"data.train={corpus}",
        f"data.validation={corpus}-validation",
        f'schedule=[{{objective="{objective}", steps={steps}}}]',
        f"lr.warmup_steps={steps // 10}",
        f"lr.decay_steps={steps // 4}",
        f"eval.every={every}",
        *overrides,
    ]
    run_file = work / f"{name}.toml"
    run_file.write_text("")
    toolkit("train", run_file, "--ds-config", "zero0", *(part for option in options for part in ("--set", option)))
    return work / name


def prepare(work: Path, name: str, tokenizer: Path) -> Path:
    """Make the bundled text a corpus and a validation corpus, with one tokenizer."""
    for split, suffix in (("train", ""), ("validation", "-validation")):
        source = DATA / f"wikipedia-{split}.parquet"
        toolkit("preprocess", source, "--tokenizer", tokenizer, "--output", work / f"{name}{suffix}")
    return work / name


def make_a_strangers(folder: Path) -> None:
    """Take the mask token out of the names: most decoders have none."""
    path = folder / "tokenizer_config.json"
    names = {key: value for key, value in json.loads(path.read_text()).items() if key != "mask_token"}
    path.write_text(json.dumps(names, indent=2))


def measure(work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    own = prepare(work, "own", DATA / "tokenizer")
    decoder = train(
        work,
        "decoder",
        "model.preset=nano",
        "lr.peak=2e-3",
        objective="clm",
        steps=options.decoder_steps,
        corpus=own,
        every=options.decoder_steps,
    )
    toolkit("convert", "--to-hf", decoder, work / "hub", "--form", "causal")
    make_a_strangers(work / "hub")
    toolkit("convert", "--from-hf", work / "hub", work / "imported", "--mask-token", "mean")
    corpus = prepare(work, "unexpected_files", work / "imported")
    shape = json.loads((work / "imported" / "manifest.json").read_text())["settings"]["model"]
    starts = {
        "from the decoder": [f"init.from={work / 'imported'}"],
        "from random weights": ["model.preset=nano", f"model.vocab_size={shape['vocab_size']}"],
    }
    rows = []
    for seed in options.seeds:
        for arm, start in starts.items():
            folder = train(
                work,
                f"{arm.replace(' ', '-')}-{seed}",
                *start,
                f"run.seed={seed}",
                f"lr.peak={options.peak}",
                objective="mlm",
                steps=options.steps,
                corpus=corpus,
                every=options.every,
            )
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            found = {line["step"]: line["eval_loss"]["mlm"] for line in lines if "eval_loss" in line}
            rows += [
                {"arm": arm, "seed": seed, "step": step, "mlm_loss": round(loss, 4)} for step, loss in found.items()
            ]
            print(f"{arm}, seed {seed}: {found[options.steps]:.3f} nats after {options.steps} steps", flush=True)
    return rows


def draw(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "adaptation"
    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    for arm, colour in ARMS.items():
        steps = sorted({row["step"] for row in rows if row["arm"] == arm})
        for seed in options.seeds:
            losses = [row["mlm_loss"] for row in rows if (row["arm"], row["seed"]) == (arm, seed)]
            axes.plot(
                steps, losses, color=colour, alpha=0.8, linewidth=1, label=arm if seed == options.seeds[0] else None
            )
    axes.set_xlabel("steps of MLM")
    axes.set_ylabel("validation MLM loss, nats")
    axes.legend(frameon=False)
    figure.tight_layout()
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoder-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=30)
    parser.add_argument("--peak", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="adaptation-"))
    work.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    rows = measure(work.resolve(), options)
    facts = {
        "benchmark": "adaptation",
        "decoder_steps": options.decoder_steps,
        "peak": options.peak,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": version("torch"),
    }
    RESULTS.write_text("".join(json.dumps(facts | row) + "\n" for row in rows))
    draw(rows, options)
    print(f"\n| start | loss at step {options.steps}: mean of {len(options.seeds)} seeds | least | most |")
    print("|---|---|---|---|")
    for arm in ARMS:
        last = [row["mlm_loss"] for row in rows if row["arm"] == arm and row["step"] == options.steps]
        print(f"| {arm} | {statistics.mean(last):.3f} | {min(last):.3f} | {max(last):.3f} |")
    print(
        f"{time.monotonic() - began:.0f} s; rows in {RESULTS.relative_to(ROOT)}, figure in {FIGURE.relative_to(ROOT)}"
    )
    if options.work is None:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
