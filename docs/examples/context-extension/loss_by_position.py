"""CLM loss by position of checkpoints, and of an exported folder, on long pieces of held-out documents.

Every row is one piece of one document, as long as the row, so position p has p tokens of context and none is padding.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.types import AttentionKind
from toolkit.data import Corpus, DataSettings, open_rows
from toolkit.experiments.report.figures.drawing import draw
from toolkit.experiments.report.figures.pictures import Panel, Picture, Point, Series
from toolkit.model import Encoder, ModelSettings

_BATCH_ROWS = 4
Logits = Callable[[Tensor], Tensor]
Losses = npt.NDArray[np.float64]


def long_rows(corpus: str, *, length: int) -> Tensor:
    """Token ids (B, S) of all whole pieces of `length` tokens; shorter documents and ends of documents are left out."""
    settings = DataSettings(train=corpus, sequence_length=length, windows="documents", min_length=length)
    rows = open_rows(Corpus(corpus), settings, seed=0)
    numbers = np.arange(rows.num_rows)
    return torch.from_numpy(rows.read(numbers, np.zeros_like(numbers)).tokens_BS.astype(np.int64))


def checkpoint_logits(run: str) -> Logits:
    """The causal model of a run's newest checkpoint: ids (B, S) to logits (B, S, V), in fp32."""
    source = open_checkpoint(run)
    encoder = Encoder(ModelSettings.model_validate(source.manifest.table("model")))
    encoder.load_state_dict({name: source.weight(name) for name in source.names})
    encoder.eval()

    def logits(ids_BS: Tensor) -> Tensor:
        return encoder.logits(ids_BS, torch.ones_like(ids_BS), AttentionKind.CAUSAL).unflatten(0, ids_BS.shape)

    return logits


def exported_logits(folder: str) -> Logits:
    """The same of a folder that `toolkit convert --to-hf --form causal` wrote, by stock transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return lambda ids_BS: model(input_ids=ids_BS).logits


@torch.inference_mode()
def token_losses(logits: Logits, ids_BS: Tensor) -> Losses:
    """Cross-entropy in nats of the token after each position, (B, S - 1)."""
    losses = [
        cross_entropy(logits(batch_BS)[:, :-1].flatten(0, 1), batch_BS[:, 1:].flatten(), reduction="none")
        for batch_BS in ids_BS.split(_BATCH_ROWS)
    ]
    return torch.cat(losses).unflatten(0, (len(ids_BS), -1)).double().numpy()


def write_table(path: Path, losses: dict[str, Losses], *, width: int) -> list[dict[str, float]]:
    """Mean loss of each model in bins of `width` positions, with the number of tokens in each."""
    some = next(iter(losses.values()))
    lines: list[dict[str, float]] = []
    for first in range(0, some.shape[1], width):
        bins = {name: values[:, first : first + width] for name, values in losses.items()}
        size = bins[next(iter(bins))].shape
        means = {name: round(float(values.mean()), 4) for name, values in bins.items()}
        lines.append(
            {"first_position": first, "last_position": first + size[1] - 1, "tokens": size[0] * size[1]} | means
        )
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, lines[0], lineterminator="\n")
        table.writeheader()
        table.writerows(lines)
    return lines


def picture(lines: list[dict[str, float]], names: list[str], *, trained_length: int) -> Picture:
    """One line for each model, and a mark where the rows of the trunk ended."""
    series = tuple(
        Series(
            name,
            tuple(Point((line["first_position"] + line["last_position"]) / 2, line[name]) for line in lines),
            color,
        )
        for color, name in enumerate(names)
    )
    return Picture(
        name="loss-by-position",
        title="Loss by position",
        caption="Held-out documents; the vertical line is the length of the trunk's rows.",
        x_label="position in the row",
        panels=(Panel("held-out rows", series, "loss (nats per token)", (float(trained_length),)),),
    )


def main() -> None:
    """Write the table and the figure, and say how far the exported folder is from the last model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("models", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--export", required=True, help="the last model, exported with --form causal")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--bin", type=int, default=32)
    parser.add_argument("--trained-length", type=int, default=128)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    ids_BS = long_rows(given.corpus, length=given.length)
    named = dict(model.split("=", 1) for model in given.models)
    losses = {name: token_losses(checkpoint_logits(run), ids_BS) for name, run in named.items()}
    given.output.mkdir(parents=True, exist_ok=True)
    lines = write_table(given.output / "loss-by-position.csv", losses, width=given.bin)
    figure = draw(picture(lines, list(named), trained_length=given.trained_length), "svg")
    (given.output / "loss-by-position.svg").write_bytes(figure)
    last = list(losses.values())[-1]
    differences = np.abs(token_losses(exported_logits(given.export), ids_BS) - last)
    print(f"{len(ids_BS)} rows of {given.length} tokens, {last.size:,} targets")
    for name, values in losses.items():
        inside, beyond = values[:, : given.trained_length], values[:, given.trained_length :]
        print(f"{name}: {inside.mean():.4f} up to position {given.trained_length - 1}, {beyond.mean():.4f} after it")
    print(f"the export's losses differ by at most {differences.max():.2e} for a token")


if __name__ == "__main__":
    main()
