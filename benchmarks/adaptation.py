"""A decoder as the start of an encoder, against random weights: a toy answer, by the whole path that users take.

    python benchmarks/adaptation.py [--steps 120] [--seeds 0 1 2] [--work DIR]

A decoder of 3.1M parameters is trained with CLM on the bundled Wikipedia text and exported to Hugging Face. Its
tokenizer forgets its mask token, so that the folder is like one of a stranger. It is then imported, which adds a mask
token, and trained further with MLM; beside it the same shape from random weights, on the same rows with the same masks,
steps, batch and learning rate, for each seed of the order of rows and of the masks. Prints a table, whose last row
is in docs/adapt.md: validation loss of MLM in nats per masked token. `toolkit report DIR/from-*` draws the curves.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "toolkit" / "quickstart"
_RUN = """precision = "fp32"
run = {{dir = "{dir}", seed = {seed}}}
data = {{train = "{corpus}", validation = "{corpus}-validation", sequence_length = 128}}
schedule = [{{objective = "{objective}", steps = {steps}}}]
train = {{global_batch_rows = 8, micro_batch_rows = 8}}
lr = {{peak = 2e-3, warmup_steps = {warmup}, decay_steps = {decay}}}
log = {{every = 10, tensorboard = false}}
eval = {{rows = 64, every = 30}}
{start}
"""
_DECODER_STEPS = 600


def toolkit(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "toolkit.cli", *map(str, arguments)], check=True, stdout=sys.stderr)


def train(folder: Path, objective: str, steps: int, *, corpus: Path, start: str, seed: int = 0) -> Path:
    """Train a run; returns its folder."""
    given = {"dir": folder, "seed": seed, "corpus": corpus, "objective": objective, "steps": steps, "start": start}
    file = folder.with_suffix(".toml")
    file.write_text(_RUN.format(**given, warmup=steps // 10, decay=steps // 4))
    toolkit("train", file, "--ds-config", "zero0")
    return folder


def prepare(folder: Path, tokenizer: Path) -> Path:
    """Make the bundled text a corpus and a validation corpus, with one tokenizer."""
    for split, suffix in (("train", ""), ("validation", "-validation")):
        source = DATA / f"wikipedia-{split}.parquet"
        toolkit("preprocess", source, "--tokenizer", tokenizer, "--output", f"{folder}{suffix}")
    return folder


def import_decoder(work: Path) -> Path:
    """A decoder as a stranger would publish it, imported: most have no mask token."""
    own = prepare(work / "own", DATA / "tokenizer")
    decoder = train(work / "decoder", "clm", _DECODER_STEPS, corpus=own, start='model = {preset = "nano"}')
    toolkit("convert", "--to-hf", decoder, work / "hub", "--form", "causal")
    config = work / "hub" / "tokenizer_config.json"
    names = {key: value for key, value in json.loads(config.read_text()).items() if key != "mask_token"}
    config.write_text(json.dumps(names, indent=2))
    toolkit("convert", "--from-hf", work / "hub", work / "imported", "--mask-token", "mean")
    return work / "imported"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    work = (options.work or Path(tempfile.mkdtemp(prefix="adaptation-"))).resolve()
    work.mkdir(parents=True, exist_ok=True)
    imported = import_decoder(work)
    corpus = prepare(work / "adapted", imported)
    size = json.loads((imported / "manifest.json").read_text())["settings"]["model"]["vocab_size"]
    starts = {
        "from the decoder": f'init = {{from = "{imported}"}}',
        "from random weights": f'model = {{preset = "nano", vocab_size = {size}}}',
    }
    print(f"| start | loss at step {options.steps}: mean of {len(options.seeds)} seeds | least | most |")
    print("|---|---|---|---|")
    for arm, start in starts.items():
        losses = []
        for seed in options.seeds:
            folder = work / f"{arm.replace(' ', '-')}-{seed}"
            train(folder, "mlm", options.steps, corpus=corpus, start=start, seed=seed)
            last = (folder / "metrics.jsonl").read_text().splitlines()[-1]
            losses.append(json.loads(last)["eval_loss"]["mlm"])
        print(f"| {arm} | {statistics.mean(losses):.3f} | {min(losses):.3f} | {max(losses):.3f} |", flush=True)


if __name__ == "__main__":
    main()
