"""A loss or gradient that is not finite: all ranks leave with one error, the rows named, nothing saved."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.checkpoint.folders import step_folders
from toolkit.core.errors import NonFiniteError
from toolkit.testing.distributed import run_distributed


@dataclass(frozen=True)
class Diverges:
    """A run with a learning rate that no weights survive."""

    run_file: str
    folder: str
    ds_config: str
    precision: str = "fp32"
    overrides: tuple[str, ...] = ()

    def __call__(self) -> str:
        overrides = (
            f"run.dir={self.folder}", f"precision={self.precision}", "lr.peak=1e38", "lr.warmup_steps=0",
            "checkpoint.every=1", "checkpoint.keep=50", *self.overrides,
        )  # fmt: skip
        try:
            RunCase(self.run_file, self.ds_config, overrides)()
        except NonFiniteError as error:
            return str(error)
        return "finished"


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_run_ends_and_the_rows_are_named(tmp_path, world_size):
    run_file = str(write_run(tmp_path))
    layouts = [("zero0", "fp32"), ("zero1", "bf16"), ("zero2", "fp32"), ("zero3", "bf16")]
    cases = [Diverges(run_file, str(tmp_path / stage), stage, precision) for stage, precision in layouts]
    for case, messages in zip(cases, run_distributed(cases, world_size=world_size), strict=True):
        assert len(set(messages)) == 1, case
        assert "is not finite" in messages[0], case
        folder = Path(case.folder)
        step = int(messages[0].split(":")[0].removeprefix("step "))
        # Those before it are there, also the one that was being written when the run ended.
        assert [saved for saved, _ in step_folders(folder / "checkpoints")] == [*range(step - 1, 0, -1)], case
        assert not list((folder / "checkpoints").glob(".writing-*")), case
        assert all(line["step"] < step for line in read_metrics(folder)), case
        if "validation" not in messages[0]:
            assert all(f"rank {rank}, epoch 0: " in messages[0] for rank in range(world_size)), case


def test_under_model_parallelism_each_copy_of_the_model_names_its_rows_once(tmp_path):
    """The last stage knows the loss; of its tensor-parallel ranks, one speaks."""
    run_file = str(write_run(tmp_path))
    layouts = [("pipeline", ("parallel.pp=2",), [2, 3]), ("pipeline", ("parallel.pp=2", "parallel.tp=2"), [2])]
    cases = [
        Diverges(run_file, str(tmp_path / str(number)), ds_config, overrides=("eval.every=100", *overrides))
        for number, (ds_config, overrides, _) in enumerate(layouts)
    ]
    found = run_distributed(cases, world_size=4)
    for case, messages, (_, _, speakers) in zip(cases, found, layouts, strict=True):
        assert len(set(messages)) == 1, case
        assert messages[0].startswith("step 2: the loss is not finite"), messages[0]
        named = [rank for rank in range(4) if f"rank {rank}, epoch 0: " in messages[0]]
        assert named == speakers, messages[0]
        assert not (Path(case.folder) / "checkpoints" / "step-00000002").exists(), case


def test_rows_of_a_blend_are_named_with_their_corpus(tmp_path):
    run_file = str(write_run(tmp_path))
    corpora = [str(tmp_path / name) for name in ("corpus", "validation")]
    blend = ", ".join(f'{{path="{path}", weight=1}}' for path in corpora)
    case = Diverges(run_file, str(tmp_path / "run"), "zero0", overrides=(f"data.train=[{blend}]",))
    (message,) = run_distributed([case], world_size=1)[0]
    assert message.startswith("step 2: the")
    assert all(f"{path} epoch 0: " in message for path in corpora), message
