"""Speed at which rows reach the model: tokens/s of one core, and the share of a training step that waits for them.

    python benchmarks/feeding.py [--documents 40000] [--steps 30]

The corpus is made up: documents of 12 to 1,012 ids. `rate`: rows are gathered from it and masked by MLM at 40 %, in
batches of 12 of 2,048 tokens and of 48 of 512, by one thread, without a model; the median of five passes counts, and
the fill of rows is shown. `waiting`: a run of the preset `nano` through the toolkit's own loop, rows of 256, in which
the time that the loop waits for its next step is summed; the first five steps are left out. One JSON row goes to
benchmarks/results/feeding.jsonl.
"""

import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
from made_up_run import few_steps, write_corpus
from rows import keep, parser_of

from toolkit.core.allocator import keep_freed_memory

if TYPE_CHECKING:
    from toolkit.training.steps_ahead import StepsAhead

VOCABULARY, SKIPPED = 32_000, 5
SHAPES = ((12, 2048), (48, 512))


def main() -> None:
    parser = parser_of("feeding", __doc__)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--steps", type=int, default=30, help="of the run whose waiting is measured")
    options = parser.parse_args()
    # As a run on a CPU does; else the kernel takes pages back and gives them again while rows are read.
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpus = write_corpus(folder / "corpus", options.documents, (12, 1012), vocabulary=VOCABULARY)
        rates = {f"{length}": rate(corpus, rows, length) for rows, length in SHAPES}
        keep(options, documents=options.documents, rates=rates, waiting=waiting(folder, corpus, options.steps))


def rate(corpus: Path, num_rows: int, length: int) -> dict[str, float]:
    """Millions of tokens that one core reads and masks in a second, and how full rows are."""
    from toolkit.core.draws import Draws
    from toolkit.data import Corpus, DataSettings, Order, RowStream, open_rows
    from toolkit.objectives.mlm import MaskedLanguageModeling, MlmSettings

    opened = Corpus(str(corpus))
    objective = MaskedLanguageModeling(MlmSettings(mask_ratio=0.4), opened.vocabulary)
    rows = open_rows(opened, DataSettings(train=str(corpus), sequence_length=length), seed=0)
    stream = RowStream(rows, Order(rows.num_rows, seed=0, shuffle="global"))
    num_batches = min(rows.num_rows // num_rows, 400)
    seconds, filled = [], 0
    for _ in range(6):
        begun, filled = time.process_time(), 0
        for batch in range(num_batches):
            samples = np.arange(batch * num_rows, (batch + 1) * num_rows, dtype=np.int64)
            read = stream.at(samples)
            objective.build(read.tokens_BS, read.segments_BS, Draws(0, samples, num_columns=length))
            filled += int(np.count_nonzero(read.segments_BS))
        seconds.append(time.process_time() - begun)
    tokens = num_batches * num_rows * length
    per_second = tokens / statistics.median(seconds[1:])
    return {"million_tokens_per_core_second": round(per_second / 1e6, 1), "fill": round(filled / tokens, 5)}


def timed(steps: "StepsAhead", waited: list[float]) -> "StepsAhead":
    """The same steps; how long the loop waited for each is noted."""
    with closing(steps):
        while True:
            begun = time.perf_counter()
            step = next(steps, None)
            waited.append(time.perf_counter() - begun)
            if step is None:
                return
            yield step


def waiting(folder: Path, corpus: Path, steps: int) -> dict[str, float]:
    """Share of the steps' time that the loop waited for rows."""
    from toolkit.run import RunFolder, load_run
    from toolkit.run.metrics import read_lines
    from toolkit.training import loop, pretrain
    from toolkit.training.steps_ahead import steps_ahead

    overrides = [f"data.train={corpus}", "data.sequence_length=256", "train.micro_batch_rows=8"]
    overrides += few_steps(folder, "mlm", steps, rows=8)
    file = folder / "run.toml"
    file.write_text('[model]\npreset = "nano"\n', encoding="utf-8")
    waited: list[float] = []
    with patch.object(loop, "steps_ahead", lambda *given, **named: timed(steps_ahead(*given, **named), waited)):
        pretrain(load_run(str(file), overrides), ds_config="zero1")
    logged = [line for line in read_lines(RunFolder(folder / "run")) if "tokens_per_second" in line][SKIPPED:]
    tokens = 8 * 256
    step_s = statistics.median(tokens / line["tokens_per_second"] for line in logged)
    waited_s = statistics.mean(waited[SKIPPED:steps])
    return {
        "share": round(waited_s / step_s, 5),
        "waited_ms": round(waited_s * 1e3, 3),
        "step_ms": round(step_s * 1e3, 1),
    }


if __name__ == "__main__":
    main()
