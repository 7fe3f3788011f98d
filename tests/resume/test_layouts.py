"""Checkpoints under tensor and pipeline parallelism: whole, and the same whatever layout writes or reads them."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.resume.test_resume import CutOff, differing_tensors
from tests.support.checkpoints import write_checkpoint
from tests.support.layouts import Layout, stage3
from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.checkpoint.read import ParameterState, open_checkpoint, open_unverified
from toolkit.core.errors import CheckpointError
from toolkit.testing.distributed import run_distributed

# Whole runs on several ranks.
pytestmark = pytest.mark.costs(25)

_PHASE = 3


@dataclass(frozen=True)
class LoadAndSave:
    """Loads a checkpoint into an engine of some layout, and saves what the engine has."""

    run_file: str
    checkpoint: str
    layout: Layout
    overrides: tuple[str, ...]
    folder: str

    def __call__(self) -> None:
        from toolkit.engine.ranks import join_ranks
        from toolkit.engine.saving import AsyncCheckpoint, load_checkpoint
        from toolkit.run.load import declare_run
        from toolkit.run.resolve import resolve_run
        from toolkit.training.set_up import build_engine

        overrides = (*self.layout.overrides, *self.overrides, f"run.dir={self.folder}/unused")
        declared = declare_run(self.run_file, overrides)
        run = resolve_run(declared, ds_config=self.layout.ds_config, num_ranks=self.layout.ranks)
        engine = build_engine(run, run.division, ranks=join_ranks(run.settings.parallel))
        found = open_checkpoint(self.checkpoint)
        load_checkpoint(engine, found)
        tokenizer = found.path / "tokenizer"
        saved = AsyncCheckpoint(engine, Path(self.folder), manifest=found.manifest, tokenizer_folder=tokenizer)
        while not saved.advance():
            pass
        engine.close()


def test_a_parameter_that_cannot_be_read_is_an_error_behind_all_exchanges(tmp_path: Path) -> None:
    from toolkit.engine.saving import load_checkpoint

    names = ["first", "second", "third"]
    states = [ParameterState(name, *(torch.full((2,), 3.0) for _ in range(3))) for name in names]
    (tmp_path / "tokenizer").mkdir()
    folder = write_checkpoint(tmp_path / "run", 1, states=states, tokenizer_folder=tmp_path / "tokenizer", num_parts=3)
    (folder / "exp_avg-00001-of-00003.safetensors").unlink()
    sent: list[torch.Tensor] = []

    def send(tensor: torch.Tensor) -> torch.Tensor:
        sent.append(tensor)
        return tensor

    ranks = SimpleNamespace(data_rank=0, from_first_copy=send, together=nullcontext)
    parameters = {name: torch.nn.Parameter(torch.zeros(2)) for name in names}
    engine: Any = SimpleNamespace(
        ranks=ranks,
        named_parameters=lambda: parameters,
        parameter_names=tuple(names),
        zero_stage=0,
        deepspeed=SimpleNamespace(optimizer=SimpleNamespace(state={})),
    )
    with pytest.raises(CheckpointError, match=r"exp_avg-00001-of-00003\.safetensors"):
        load_checkpoint(engine, open_unverified(folder))
    assert len(sent) == 3 * len(names)


def _layouts(folder: Path) -> list[Layout]:
    """Every kind of layout, those of equal size together."""
    return [
        Layout("zero1", 1), Layout("zero1", 2), Layout("zero2", 2), Layout(stage3(folder), 2), Layout("zero1", 2, tp=2),
        Layout(stage3(folder), 2, tp=2), Layout("pipeline", 2, pp=2), Layout("zero2", 4, tp=2),
        Layout("pipeline", 4, pp=2), Layout("pipeline", 4, tp=2, pp=2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "model", [(), ("model.tie_word_embeddings=true", 'precision="bf16"')], ids=["fp32", "tied bf16"]
)
def test_every_layout_saves_the_checkpoint_that_it_loaded(tmp_path: Path, model: tuple[str, ...]) -> None:
    """97 tokens: over two ranks, the shares of the embedding are larger than the whole."""
    run_file = str(write_run(tmp_path, phase_steps=_PHASE))
    run_distributed([RunCase(run_file, "zero1", (f"run.dir={tmp_path / 'reference'}", *model))], world_size=1)
    reference = open_checkpoint(tmp_path / "reference")
    layouts = _layouts(tmp_path)
    for size in (1, 2, 4):
        same_size = [layout for layout in layouts if layout.ranks == size]
        cases = [
            LoadAndSave(run_file, str(reference.path), layout, model, str(tmp_path / str(layout).replace(" ", "-")))
            for layout in same_size
        ]
        run_distributed(cases, world_size=size)
        for case, layout in zip(cases, same_size, strict=True):
            assert differing_tensors(reference, open_checkpoint(case.folder)) == [], layout


def test_resume_under_model_parallelism_is_exact(tmp_path: Path) -> None:
    run_file = write_run(tmp_path, phase_steps=_PHASE)
    cases = []
    around, at = ((_PHASE - 1, _PHASE + 1),), ((_PHASE,),)
    layouts = [("zero1", "fp32", "tp=2", around), ("zero2", "bf16", "tp=2", at), (stage3(tmp_path), "fp32", "tp=2", at)]
    layouts += [("pipeline", "fp32", "pp=2", around), ("pipeline", "bf16", "pp=2", at)]
    for ds_config, precision, degree, stops in layouts:
        folder = tmp_path / f"{Path(ds_config).stem}-{precision}"
        folder.mkdir()
        overrides = (f"parallel.{degree}", f'precision="{precision}"', "model.tie_word_embeddings=true")
        cases.append(CutOff(str(run_file), str(folder), ds_config, overrides, stops))
    for case, results in zip(cases, run_distributed(cases, world_size=2), strict=True):
        assert results[0] == [], case


def test_a_run_goes_on_in_another_layout(tmp_path: Path) -> None:
    """Half a run in each of two layouts: order and masks unchanged, losses those of one process."""
    run_file = str(write_run(tmp_path, phase_steps=_PHASE))
    crosses = [
        (Layout("zero1", 2, tp=2), Layout("zero2", 2)),
        (Layout(stage3(tmp_path), 2), Layout("zero1", 2, tp=2)),
        (Layout("zero2", 2, tp=2), Layout("zero0", 1)),
        (Layout("zero0", 1), Layout(stage3(tmp_path), 2, tp=2)),
        (Layout("pipeline", 2, pp=2), Layout("zero0", 1)),
        (Layout("zero2", 2, tp=2), Layout("pipeline", 2, pp=2)),
    ]
    reference = RunCase(run_file, "zero0", (f"run.dir={tmp_path / 'reference'}",))
    run_distributed([reference], world_size=1)
    expected = read_metrics(tmp_path / "reference")
    folders = {tmp_path / f"cross-{number}": pair for number, pair in enumerate(crosses)}
    for half, until in ((0, _PHASE), (1, None)):
        # Runs of equally many ranks share a process group.
        for size in (1, 2):
            cases = [
                RunCase(run_file, pair[half].ds_config, (f"run.dir={folder}", *pair[half].overrides), until)
                for folder, pair in folders.items()
                if pair[half].ranks == size
            ]
            run_distributed(cases, world_size=size)
    for folder, pair in folders.items():
        assert open_checkpoint(folder).manifest.kernels == {"attention": "sdpa", "blocks": "eager"}, pair
        found = read_metrics(folder)
        assert [line["data_digest"] for line in found] == [line["data_digest"] for line in expected], pair
        for one, other in zip(expected[1:], found[1:], strict=True):
            assert other["loss"] == pytest.approx(one["loss"], rel=1e-5), (pair, one["step"])
