"""A branch equals, bit for bit, the same model trained in one piece; a script of its own reads the digest chain."""

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from tests.resume.test_resume import differing_tensors
from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.errors import SettingsError
from toolkit.run.branching import make_branch
from toolkit.run.data import open_run_data
from toolkit.run.load import declare_run
from toolkit.testing.distributed import run_distributed

# Whole runs on several ranks.
pytestmark = pytest.mark.costs(15)

_SWITCH, _LAST, _ROWS = 4, 8, 8
_KEPT = ("checkpoint.keep_at=[3, 4, 5, 6, 8]",)
_SAME = (
    "loss",
    "targets",
    "tokens",
    "learning_rate",
    "grad_norm",
    "data_digest",
    "objective",
    "attention",
    "eval_loss",
)


@dataclass(frozen=True)
class Tail:
    """A tail and the run in one piece that it has to equal: overrides of the trunk, or the trunk itself."""

    name: str
    toml: str
    step: int
    whole: tuple[str, ...] = field(default=())

    def file(self, folder: Path) -> Path:
        path = folder / f"{self.name}.toml"
        path.write_text(self.toml, encoding="utf-8")
        return path


_TAILS = (
    Tail("before", '[[schedule]]\nobjective = "clm"\nsteps = 1\n[[schedule]]\nobjective = "mlm"\nsteps = 4\n', 3),
    Tail("at", '[[schedule]]\nobjective = "mlm"\nfraction = 1.0\n[train]\nsteps = 4\n', 4),
    Tail("after", '[[schedule]]\nobjective = "mlm"\ntokens = 1536\n', 5),
    Tail(
        "more rows",
        '[[schedule]]\nobjective = "mlm"\nsteps = 4\n[train]\nglobal_batch_rows = 16\n',
        4,
        ("schedule.1.global_batch_rows=16",),
    ),
    Tail(
        "longer",
        '[[schedule]]\nobjective = "mlm"\nsteps = 6\n[objectives.mlm]\nmask_ratio = 0.2\n[lr]\ndecay_steps = 4\n',
        4,
        ("schedule.1.steps=6", "objectives.mlm.mask_ratio=0.2", "lr.decay_steps=4"),
    ),
)


@dataclass(frozen=True)
class Branched:
    """Trains a trunk, then each tail as a branch and as one piece; all on the ranks of one process group."""

    folder: str
    ds_config: str

    def __call__(self) -> None:
        from toolkit.engine.ranks import join_ranks

        ranks, folder = join_ranks(), Path(self.folder)
        run_file = str(folder / "run.toml")
        RunCase(run_file, self.ds_config, _KEPT)()
        for tail in _TAILS:
            output = folder / tail.name
            if ranks.rank == 0:
                make_branch(folder / "run", step=tail.step, tail=tail.file(folder), output=output)
            dist.barrier()
            RunCase(str(output / "run.toml"), self.ds_config)()
            if tail.whole:
                RunCase(run_file, self.ds_config, (*tail.whole, f"run.dir={folder / 'whole' / tail.name}"))()


@pytest.mark.parametrize(("world_size", "ds_config"), [(1, "zero0"), (2, "zero2")])
def test_a_branch_is_the_run_in_one_piece(tmp_path: Path, world_size: int, ds_config: str) -> None:
    write_run(tmp_path, phase_steps=_SWITCH)
    run_distributed([Branched(str(tmp_path), ds_config)], world_size=world_size)
    for tail in _TAILS:
        branch, whole = tmp_path / tail.name, tmp_path / "whole" / tail.name if tail.whole else tmp_path / "run"
        found = {line["step"]: _comparable(line) for line in read_metrics(branch) if "loss" in line}
        expected = {line["step"]: _comparable(line) for line in read_metrics(whole) if line["step"] > tail.step}
        assert found == expected, tail.name
        one, other = open_checkpoint(branch), open_checkpoint(whole)
        assert differing_tensors(one, other) == [], tail.name
        for key in ("step", "optimizer_step", "tokens", "data_position", "data_digest", "losses"):
            assert getattr(one.manifest, key) == getattr(other.manifest, key), (tail.name, key)
        first = read_metrics(branch)[0]
        assert (first["step"], "loss" in first, sorted(first["eval_loss"])) == (tail.step, False, ["clm", "mlm"])


def test_later_phases_of_a_branch_go_on_with_data_and_peak_of_the_run(tmp_path: Path) -> None:
    """A branch leaves in a phase on other data with a peak of its own; the next is on the first data again. Another
    leaves at the end of that phase, with a tail that says nothing of data."""
    first = '{objective="clm", steps=4}'
    second = f'{{objective="mlm", steps=4, data={{train="{tmp_path / "validation"}"}}, lr="rewarm", lr_peak=3e-3}}'
    third = '{objective="mlm", steps=3, lr="rewarm"}'
    trunk = _run(tmp_path, f"schedule=[{first}, {second}, {third}]", "lr.warmup_steps=1", "lr.decay_steps=1")
    rest = second.replace("steps=4", "steps=2").replace(', lr="rewarm", lr_peak=3e-3', "")
    tail = _tail(tmp_path, f"schedule = [{rest}, {third}]")
    branch = make_branch(trunk, step=6, tail=tail, output=tmp_path / "6")[0]
    tail = _tail(tmp_path, '[[schedule]]\nobjective = "mlm"\nsteps = 3\n[branch]\nlr = "rewarm"\n')
    other = make_branch(trunk, step=8, tail=tail, output=tmp_path / "8")[0]
    run_distributed([RunCase(str(branch)), RunCase(str(other))], world_size=1)
    for step in (6, 8):
        expected = [_comparable(line) for line in read_metrics(trunk) if line["step"] > step]
        assert [_comparable(line) for line in read_metrics(tmp_path / f"{step}") if "loss" in line] == expected
        assert differing_tensors(open_checkpoint(tmp_path / f"{step}"), open_checkpoint(trunk)) == []


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `write_run` with a finished run that has checkpoints of most steps."""
    folder = tmp_path_factory.mktemp("plain")
    _run(folder)
    return folder


def _comparable(line: dict[str, Any]) -> dict[str, Any]:
    return {key: line.get(key) for key in _SAME}


def _run(folder: Path, *overrides: str) -> Path:
    run_file = write_run(folder, phase_steps=_SWITCH)
    run_distributed([RunCase(str(run_file), "zero0", (*_KEPT, *overrides))], world_size=1)
    return folder / "run"


def _tail(folder: Path, text: str) -> Path:
    path = folder / "tail.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_digest_goes_on_and_an_independent_reader_finds_every_step(plain: Path, tmp_path: Path) -> None:
    tail = _tail(tmp_path, '[[schedule]]\nobjective = "mlm"\nsteps = 3\n')
    run_file = make_branch(plain / "run", step=5, tail=tail, output=tmp_path / "branch")[0]
    run_distributed([RunCase(str(run_file))], world_size=1)
    digests = {line["step"]: line["data_digest"] for line in read_metrics(tmp_path / "branch")}
    stream = open_run_data(declare_run(str(run_file))).training[0].stream()
    digest = bytes(16)
    for step in range(8):
        rows = stream.at(np.arange(step * _ROWS, (step + 1) * _ROWS))
        hashes = b"".join(
            hashlib.blake2b(tokens.astype("<i4").tobytes() + segments.astype("<i4").tobytes(), digest_size=8).digest()
            for tokens, segments in zip(rows.tokens_BS, rows.segments_BS, strict=True)
        )
        digest = hashlib.blake2b(digest + hashes, digest_size=16).digest()
        if step + 1 in digests:
            assert digests.pop(step + 1) == digest.hex(), step
    assert not digests


@pytest.mark.parametrize(("world_size", "ds_config"), [(1, "zero0"), (2, "zero2")])
def test_a_tail_on_other_data_is_a_phase_on_other_data(
    plain: Path, tmp_path: Path, world_size: int, ds_config: str
) -> None:
    """Behind a decayed trunk, whose rate warms up again; rows are those of the other data from the first on."""
    other = plain / "validation"
    text = f'[[schedule]]\nobjective = "mlm"\nsteps = 4\n[data]\ntrain = "{other}"\n[branch]\nlr = "rewarm"\n'
    run_file = make_branch(plain / "run", step=_LAST, tail=_tail(tmp_path, text), output=tmp_path / "branch")[0]
    first = '{objective="clm", steps=4}, {objective="mlm", steps=4}'
    last = f'{{objective="mlm", steps=4, lr="rewarm", data={{train="{other}"}}}}'
    whole = (f"run.dir={tmp_path / 'whole'}", f"schedule=[{first}, {last}]")
    cases = [RunCase(str(run_file), ds_config), RunCase(str(plain / "run.toml"), ds_config, whole)]
    run_distributed(cases, world_size=world_size)
    expected = [_comparable(line) for line in read_metrics(tmp_path / "whole") if line["step"] > _LAST]
    assert [_comparable(line) for line in read_metrics(tmp_path / "branch") if "loss" in line] == expected
    one, other_one = open_checkpoint(tmp_path / "branch"), open_checkpoint(tmp_path / "whole")
    assert differing_tensors(one, other_one) == []
    assert (one.manifest.step, one.manifest.data_position) == (12, 4 * _ROWS)


def test_a_branch_onto_other_data_does_without_the_trunks(tmp_path: Path) -> None:
    """Made, begun, resumed and left again, with the trunk's corpus gone; what that was stays known."""
    trunk = _run(tmp_path)
    (tmp_path / "corpus").rename(tmp_path / "gone")
    hashed = open_checkpoint(trunk).manifest.corpora["data.train"]
    other = f'[data]\ntrain = "{tmp_path / "validation"}"\n[branch]\nlr = "rewarm"\n'
    tail = _tail(tmp_path, f'[[schedule]]\nobjective = "mlm"\nsteps = 4\n{other}')
    first = make_branch(trunk, step=_LAST, tail=tail, output=tmp_path / "first", overrides=["checkpoint.every=2"])[0]
    run_distributed([RunCase(str(first))], world_size=1)
    whole = open_checkpoint(tmp_path / "first")
    (whole.path).rename(tmp_path / "as if killed")
    run_distributed([RunCase(str(first))], world_size=1)
    resumed = open_checkpoint(tmp_path / "first")
    assert differing_tensors(resumed, open_checkpoint(tmp_path / "as if killed")) == []
    assert resumed.manifest.corpora["data.train"] == hashed
    second = make_branch(tmp_path / "first", step=10, tail=tail, output=tmp_path / "second")[0]
    run_distributed([RunCase(str(second))], world_size=1)
    # What lies there now is not what the steps before read.
    shutil.copytree(tmp_path / "validation", tmp_path / "corpus")
    with pytest.raises(SettingsError, match=r"part at step 0, before 8:\n  data\.train: "):
        make_branch(trunk, step=_LAST, tail=tail, output=tmp_path / "third")


def test_a_reset_optimizer_begins_at_zero_and_survives_a_restart(plain: Path, tmp_path: Path) -> None:
    tail = _tail(tmp_path, '[[schedule]]\nobjective = "mlm"\nsteps = 4\n[branch]\noptimizer = "reset"\n')
    for name in ("whole", "again"):
        make_branch(plain / "run", step=_SWITCH, tail=tail, output=tmp_path / name, overrides=["checkpoint.every=2"])
    files = [str(tmp_path / name / "run.toml") for name in ("whole", "again")]
    run_distributed([RunCase(file) for file in files], world_size=1)
    whole = open_checkpoint(tmp_path / "whole")
    assert (whole.manifest.step, whole.manifest.optimizer_step) == (8, 4)
    # As if killed after step 6.
    again = tmp_path / "again" / "checkpoints" / "step-00000008"
    again.rename(tmp_path / "gone")
    run_distributed([RunCase(files[1])], world_size=1)
    assert differing_tensors(whole, open_checkpoint(tmp_path / "again")) == []
    assert json.loads((again / "manifest.json").read_text())["optimizer_step"] == 4
