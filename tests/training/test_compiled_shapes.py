"""Evaluation and training share the compiler's cache: batches come in few shapes, so that it never runs full.

Beyond 8 entries for a function, Dynamo runs it uncompiled for good and says so in a warning alone.
"""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from tests.support.runs import write_run
from toolkit.data import Corpus, Order, RowStream, open_rows
from toolkit.model.compiled_blocks import compile_blocks_
from toolkit.model.encoder import Encoder
from toolkit.model.initialization import initialize_
from toolkit.objectives import registry
from toolkit.objectives.mixture import StepMix
from toolkit.parallel.topology import batch_plan
from toolkit.run import load_run
from toolkit.testing.models import MODEL_OPTIONS, tiny_settings
from toolkit.training.batching import STATIC_TARGETS_MULTIPLE, Batcher, EvaluationBatches, StepRows

_MOST_ENTRIES = 6
_MICRO_BATCH_ROWS = 4


@pytest.fixture
def corpus_rows(tmp_path):
    settings = load_run(str(write_run(tmp_path)))
    corpus = Corpus(settings.data.train)
    return corpus, open_rows(corpus, settings.data, seed=7)


@pytest.fixture(params=[{}, MODEL_OPTIONS["modernbert"]], ids=["plain", "modernbert"])
def compiled(request, monkeypatch):
    """A tiny encoder whose blocks are compiled, as far as graphs go; and how often each function was, by name."""
    torch._dynamo.reset()
    # Graphs and guards are those of any backend; this one generates no code.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    # Of ModernBERT's blocks, a first one without a norm, one of either type, and the last.
    encoder = Encoder(tiny_settings(vocab_size=97, num_hidden_layers=4, **request.param))
    initialize_(encoder, 7)
    compile_blocks_(encoder)

    def entries():
        codes = {type(module).forward.__code__ for module in encoder.modules()}
        return Counter({code.co_qualname: len(_debug_get_cache_entry_list(code)) for code in codes})

    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield encoder, entries
    torch._dynamo.reset()


def test_evaluation_leaves_the_cache_to_training(corpus_rows, compiled):
    """All ranks' shares of 9 rows: full, partly filled and spare batches; both kinds; then steps of both phases,
    and of a mixture, whose micro-batches have any number of causal rows.
    """
    (corpus, rows), (encoder, entries) = corpus_rows, compiled
    objectives = {name: registry.build(name, {}, corpus.vocabulary) for name in ("clm", "mlm")}

    def loss(batch):
        return encoder(
            batch.input_ids_BS, batch.layout, batch.attention,
            positions_N=batch.positions_N, labels_N=batch.labels_N, scale=1.0,
        )  # fmt: skip

    with torch.no_grad():
        for objective in objectives.values():
            for rank in (0, 1, 2, 3):
                batches = EvaluationBatches(
                    rows, num_rows=9, micro_batch_rows=_MICRO_BATCH_ROWS, seed=7, data_rank=rank, data_parallel_size=4,
                    targets_multiple=STATIC_TARGETS_MULTIPLE,
                )  # fmt: skip
                for batch in batches.of(objective):
                    loss(batch)
    assert entries().most_common(1)[0][1] >= 2, "nothing was compiled"
    stream = RowStream(rows, Order(rows.num_rows, seed=7, shuffle="global"))
    layout = batch_plan(8, _MICRO_BATCH_ROWS, data_parallel=1)
    mixes = {name: StepMix((name,), (objective,), (1.0,)) for name, objective in objectives.items()}
    mixes["both"] = StepMix(("clm", "mlm"), tuple(objectives.values()), (0.5, 0.5))
    schedule = ["clm", "clm", "mlm", "mlm", *["both"] * 8]
    batcher = Batcher(
        lambda step: StepRows(
            stream, ["corpus"], 8 * step, layout, np.array([4, 4] if schedule[step] == "both" else [8])
        ),
        data_rank=0,
        seed=7,
        device=torch.device("cpu"),
        targets_multiple=STATIC_TARGETS_MULTIPLE,
        model=tiny_settings(),
    )
    for step, name in enumerate(schedule):
        for batch in batcher.step(step, mixes[name]).micro_batches:
            loss(batch).backward()
    most = entries().most_common(1)[0]
    assert most[1] <= _MOST_ENTRIES, entries()
