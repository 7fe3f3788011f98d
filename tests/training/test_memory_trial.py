"""Micro-batches that need more memory than there is: smaller ones before the first step, a message after it."""

import contextlib
import io
import os
import re
from dataclasses import dataclass
from unittest import mock

import pytest
import torch

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import UserError
from toolkit.model.encoder import Encoder
from toolkit.run import RunFolder
from toolkit.run.continuation import Continuation
from toolkit.run.resolve import ResolvedRun
from toolkit.testing.distributed import run_distributed
from toolkit.training import memory_trial

_SAYS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.06 GiB is "
    "free. Of the allocated memory 75.10 GiB is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but "
    "unallocated."
)
_OVERRIDES = ("schedule.0.steps=2", "schedule.1.steps=2", "lr.warmup_steps=1", "lr.decay_steps=1")


@dataclass(frozen=True)
class ShortOfMemory(RunCase):
    """A run on devices whose memory, on one rank, is full above so many rows; returns what it told as well."""

    most_rows: int = 1
    short_rank: int = 0
    from_pass: int = 0
    """Forward passes of that rank before it is short."""

    def __call__(self):
        passes, run_forward = 0, Encoder.forward

        def forward(encoder, input_ids_BS, *arguments, **options):
            nonlocal passes
            passes += 1
            is_short = int(os.environ.get("RANK", "0")) == self.short_rank and passes > self.from_pass
            if is_short and len(input_ids_BS) > self.most_rows:
                raise torch.OutOfMemoryError(f"{_SAYS} If reserved but unallocated memory is large try something.")
            return run_forward(encoder, input_ids_BS, *arguments, **options)

        told = io.StringIO()
        with (
            mock.patch("toolkit.training.memory_trial.is_limited", return_value=True),
            mock.patch.object(Encoder, "forward", forward),
            contextlib.redirect_stdout(told),
        ):
            try:
                outcome, metrics = RunCase.__call__(self)
            except UserError as error:
                return str(error), [], told.getvalue().splitlines()
        return outcome, metrics, told.getvalue().splitlines()


def _losses(metrics):
    return [(line["step"], line.get("loss"), line.get("grad_norm"), line.get("validation")) for line in metrics]


def _short_of(lines):
    return [line for line in lines if "out of memory" in line]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_trains_on_with_the_next_smaller_micro_batches(tmp_path, world_size):
    """One rank alone is short; what it trains is what such micro-batches train, at every stage with a trial."""
    cases, share = [], 8 // world_size
    for stage in (0, 1, 2):
        for rows, most in ((share, 2), (2, share)):
            folder = tmp_path / f"zero{stage}-{rows}"
            folder.mkdir()
            overrides = (*_OVERRIDES, f"train.micro_batch_rows={rows}")
            cases.append(ShortOfMemory(str(write_run(folder)), f"zero{stage}", overrides, None, most, world_size - 1))
    found = run_distributed(cases, world_size=world_size)
    for (shrunk, *_), (asked, *_), stage in zip(found[::2], found[1::2], (0, 1, 2), strict=True):
        assert shrunk[0] == asked[0] == "finished at step 4"
        assert _losses(shrunk[1]) == _losses(asked[1])
        assert not _short_of(asked[2])
        lines = _short_of(shrunk[2])
        assert [line.rpartition(" ")[2] for line in lines] == [
            f"train.micro_batch_rows={rows}." for rows in (4, 2) if rows < share
        ]
        whose = "" if world_size == 1 else "on rank 1, "
        expected = rf"out of memory with {share} rows a micro-batch, for which \d\.\d GB were expected \(weights .*"
        assert re.match(rf"{expected}\): {whose}{re.escape(_SAYS)} Trying", lines[0])
        folder = RunFolder(tmp_path / f"zero{stage}-{share}" / "run")
        config = folder.read_json(folder.ds_config_file)
        sizes = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
        assert sizes == (2, share // 2)
    assert not any(_short_of(told) for results in found for _, _, told in results[1:]), "told by rank 0 alone"


def test_where_not_even_one_row_fits_it_says_what_to_change(tmp_path):
    case = ShortOfMemory(str(write_run(tmp_path)), "zero1", _OVERRIDES, None, 0)
    ((message, _, told),) = run_distributed([case], world_size=1)[0]
    assert len(_short_of(told)) == 2
    assert message.startswith("out of memory with 1 row a micro-batch")
    assert _SAYS in message
    assert message.splitlines()[1].startswith("Set train.activation_checkpointing or parallel.tp")


def test_a_later_step_that_runs_out_names_the_next_smaller_number(tmp_path):
    """And the first one at ZeRO stage 3, where there is no trial."""
    late = ShortOfMemory(str(write_run(tmp_path)), "zero1", _OVERRIDES, None, 2, 0, from_pass=6)
    (tmp_path / "3").mkdir()
    untried = ShortOfMemory(str(write_run(tmp_path / "3")), "zero3", _OVERRIDES, None, 2)
    for ((message, _, told),) in run_distributed([late, untried], world_size=1):
        assert not _short_of(told)
        assert message.startswith("out of memory with 4 rows a micro-batch")
        assert _SAYS in message
        assert message.splitlines()[1].startswith("Set train.micro_batch_rows=2, train.activation_checkpointing")


def test_graphs_of_micro_batches_that_do_not_fit_are_forgotten(monkeypatch):
    """Else the compiler would take the rows of the next ones for a size that changes."""
    settings = mock.MagicMock()
    settings.parallel.tp = settings.parallel.pp = 1
    large, small = (mock.MagicMock(is_compiled=True) for _ in range(2))
    run = ResolvedRun(
        settings=settings, plan=mock.MagicMock(), data=mock.MagicMock(), division=large, continuation=Continuation()
    )
    fits = iter(["out of memory", None])
    monkeypatch.setattr(memory_trial, "is_limited", lambda device: True)
    monkeypatch.setattr(memory_trial, "agree", lambda ranks, found: found)
    monkeypatch.setattr(memory_trial, "_try_largest", lambda run, engine: next(fits))
    monkeypatch.setattr(memory_trial, "divide_smaller", lambda run, division: small)
    forgotten = mock.Mock()
    monkeypatch.setattr(torch._dynamo, "reset", forgotten)
    assert memory_trial.fit_micro_batches(run, mock.MagicMock(zero_stage=1)).division is small
    forgotten.assert_called_once_with()
