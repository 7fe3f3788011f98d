"""A fork equals, bit for bit, the same run trained alone; and what it refuses to go on from."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.resume.test_resume import differing_tensors
from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.errors import SettingsError
from toolkit.run import load_run
from toolkit.run.load import declare_run
from toolkit.run.resolve import resolve_run
from toolkit.testing.distributed import run_distributed

# Whole runs on several ranks.
pytestmark = pytest.mark.costs(15)

_RATES = "lr={peak=1e-2, warmup_steps=2, decay_steps=2}"
_KEPT = ("checkpoint.keep_at=[3, 8, 10]", "checkpoint.keep=1")
_OF_THE_STATE = (
    *("step", "optimizer_step", "tokens", "data_position", "data_digest", "losses", "recent_losses", "origin"),
    *("corpora", "phase_settings", "layout", "tensors"),
)


@dataclass(frozen=True)
class Leaf:
    """A run, and where it forks off the trunk; by overrides of the file of `write_run`."""

    name: str
    step: int
    schedule: str
    more: tuple[str, ...] = ()


def _first(steps: int) -> str:
    """A phase whose batch warm-up takes 5, 3 and 2 steps of 2, 4 and 6 rows."""
    return f'{{objective="clm", steps={steps}, batch_warmup_rows=2, batch_warmup_tokens=1800}}'


_TRUNK = Leaf("trunk", 0, f"[{_first(14)}]")
_LEAVES = (
    # Inside the trunk's batch warm-up, which goes on.
    Leaf("inside", 3, f'[{_first(11)}, {{objective="mlm", steps=2, data={{sequence_length=32}}}}]'),
    # At the end of a phase, to another one with a mask ratio that changes over it.
    Leaf(
        "switch",
        10,
        f'[{_first(10)}, {{objective="mlm", steps=6}}]',
        ("objectives.mlm.mask_ratio={start=0.5, stop=0.2}",),
    ),
    # A decay of its own, and a phase behind it that warms up again with a new optimizer.
    Leaf(
        "again",
        8,
        f'[{_first(12)}, {{objective="mlm", steps=3, lr="rewarm", lr_peak=3e-3, lr_warmup_steps=1, '
        'lr_decay_steps=1, optimizer="reset"}]',
    ),
)


@dataclass(frozen=True)
class Family:
    """Trains a trunk in two pieces, leaves that fork off it, and each leaf alone; on the ranks of one process group."""

    folder: str
    ds_config: str

    def __call__(self) -> list[str]:
        ended = [self._train(_TRUNK, (), until=until) for until in (5, 8, 6, None)]
        for leaf in _LEAVES:
            checkpoint = Path(self.folder) / "trunk" / "checkpoints" / f"step-{leaf.step:08d}"
            self._train(leaf, (f'fork={{from="{checkpoint}", step={leaf.step}}}',))
            self._train(leaf, (f"run.dir={self.folder}/alone/{leaf.name}",))
        return ended

    def _train(self, leaf: Leaf, more: tuple[str, ...], *, until: int | None = None) -> str:
        from toolkit.training import pretrain

        own = (f"run.dir={self.folder}/{leaf.name}", f"schedule={leaf.schedule}", _RATES, *_KEPT, *leaf.more, *more)
        return str(pretrain(load_run(f"{self.folder}/run.toml", own), ds_config=self.ds_config, until=until))


@pytest.mark.parametrize(("world_size", "ds_config"), [(1, "zero0"), (2, "zero2")])
def test_a_fork_is_the_run_trained_alone(tmp_path: Path, world_size: int, ds_config: str) -> None:
    write_run(tmp_path, phase_steps=7)
    (ended, *_) = run_distributed([Family(str(tmp_path), ds_config)], world_size=world_size)[0]
    assert ended == ["stopped at step 5", "stopped at step 8", "already at step 8", "finished at step 14"]
    assert [line["step"] for line in read_metrics(tmp_path / "trunk") if "loss" in line] == list(range(1, 15))
    for leaf in _LEAVES:
        forked, alone = tmp_path / leaf.name, tmp_path / "alone" / leaf.name
        one, other = open_checkpoint(forked), open_checkpoint(alone)
        assert differing_tensors(one, other) == [], leaf.name
        assert {name: entry.sha256 for name, entry in one.manifest.files.items()} == {
            name: entry.sha256 for name, entry in other.manifest.files.items()
        }
        assert _state(one.manifest) == _state(other.manifest), leaf.name
        first, *lines = read_metrics(forked)
        assert (first["step"], "loss" in first, sorted(first["eval_loss"])) == (leaf.step, False, ["clm", "mlm"])
        assert [_untimed(line) for line in lines] == [
            _untimed(line) for line in read_metrics(alone) if line["step"] > leaf.step
        ], leaf.name


def test_a_fork_keeps_the_layout_of_the_trunk_where_it_is_unset(tmp_path: Path) -> None:
    """By its own schedule it would be cut into [2, 2], and take 8 rows a micro-batch."""
    run_file = write_run(tmp_path, phase_steps=4)
    run_file.write_text(run_file.read_text().replace("micro_batch_rows = 4", ""))
    wide = (*("model.num_hidden_layers=4", "model.vocab_size=512", "parallel.pp=2"), _RATES)
    leaf = (*wide, "objectives.mlm.mask_ratio=0.15", f"run.dir={tmp_path}/leaf")
    leaf += ('schedule=[{objective="clm", steps=3}, {objective="mlm", steps=8}]', "checkpoint.every=6")
    checkpoint = tmp_path / "run/checkpoints/step-00000003"
    forked = (*leaf, f'fork={{from="{checkpoint}", step=3}}')
    alone = (*leaf, f"run.dir={tmp_path}/alone", "parallel.stages=[3, 1]", "train.micro_batch_rows=2")
    cases = [
        RunCase(str(run_file), "pipeline", overrides, until=until)
        for overrides, until in (
            ((*wide, 'schedule=[{objective="clm", steps=6}]', *_KEPT, "train.micro_batch_rows=2"), None),
            (forked, 6),
            (forked, None),
            (alone, None),
        )
    ]
    run_distributed(cases, world_size=2)
    one, other = open_checkpoint(tmp_path / "leaf"), open_checkpoint(tmp_path / "alone")
    assert (one.manifest.layout.stages, one.manifest.layout.micro_batch_rows) == ((3, 1), 2)
    assert differing_tensors(one, other) == []
    unset = resolve_run(declare_run(str(run_file), alone[:-2]), ds_config="pipeline", num_ranks=2)
    assert [len(blocks) for blocks in unset.stages] == [3, 1], "resumed"
    fresh = resolve_run(
        declare_run(str(run_file), [*leaf, f"run.dir={tmp_path}/new"]), ds_config="pipeline", num_ranks=2
    )
    assert ([len(blocks) for blocks in fresh.stages], fresh.division.batch.micro_batch_rows) == ([2, 2], 8)


def _state(manifest: CheckpointManifest) -> dict[str, Any]:
    return {key: getattr(manifest, key) for key in _OF_THE_STATE}


def _untimed(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.endswith(("_per_second", "mfu"))}


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run file of a run of 4 + 4 steps, which has kept the checkpoints of steps 4 and 8."""
    folder = tmp_path_factory.mktemp("trunk")
    run_file = write_run(folder, phase_steps=4)
    run_distributed([RunCase(str(run_file), "zero0", ("checkpoint.keep_at=[4]",))], world_size=1)
    return run_file


def _fork(trunk: Path, *overrides: str, step: int = 4, says: int | None = None) -> Any:
    """The run that forks off the trunk, resolved."""
    checkpoint = trunk.parent / "run" / "checkpoints" / f"step-{step:08d}"
    fork = f'fork={{from="{checkpoint}", step={says or step}}}'
    declared = declare_run(str(trunk), [f"run.dir={trunk.parent / 'fork'}", fork, *overrides])
    return resolve_run(declared, ds_config="zero0", num_ranks=1)


def test_a_fork_with_a_checkpoint_of_its_own_needs_the_trunk_no_more(trunk: Path) -> None:
    folder, checkpoint = trunk.parent / "alone", trunk.parent / "taken" / "step-00000004"
    shutil.copytree(trunk.parent / "run" / "checkpoints" / "step-00000004", checkpoint)
    begun = (f"run.dir={folder}", "checkpoint.every=6", f'fork={{from="{checkpoint}", step=4}}')
    run_distributed([RunCase(str(trunk), "zero0", (*begun, "checkpoint.keep=9"))], world_size=1)
    shutil.rmtree(checkpoint)
    shutil.rmtree(folder / "checkpoints" / "step-00000008")
    # The table may go too: it is the run trained alone.
    run_distributed([RunCase(str(trunk), "zero0", begun[:2])], world_size=1)
    one, other = open_checkpoint(folder), open_checkpoint(trunk.parent / "run")
    assert (one.manifest.step, differing_tensors(one, other)) == (8, [])


def test_what_is_left_unset_is_as_the_trunk_has_it(trunk: Path) -> None:
    text = trunk.read_text().replace('precision = "fp32"\n', "").replace("vocab_size = 97\n", "")
    (trunk.parent / "unset.toml").write_text(text)
    run = _fork(trunk.parent / "unset.toml")
    assert (run.settings.precision, run.settings.model.vocab_size) == ("fp32", 97)
    assert run.continuation.describe(run.settings).startswith("forking from ")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("run.seed=8",), r"part at step 0, before 4:\n  run\.seed: 7 there, 8 here\n"),
        (('schedule.0={objective="clm", steps=3}',), r"part at step 3, before 4:\n  objective: clm there, mlm here"),
        (("lr.peak=2e-2",), r"part at step 0, before 4:\n  lr: 0\.01 up to step 6 there, 0\.02 up to step 6 here\n"),
        (("data.min_length=8",), r"data\.min_length: 12 there, 8 here"),
        (("model.hidden_size=64",), r"differs from \[model\]:\n  model\.hidden_size: there 32, here 64"),
    ],
)
def test_a_run_that_parted_earlier_is_refused(trunk: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        _fork(trunk, *overrides)


def test_another_mask_ratio_behind_the_fork_is_no_other_run(trunk: Path) -> None:
    assert _fork(trunk, "objectives.mlm.mask_ratio=0.3").continuation.step == 4


def test_a_corpus_is_known_by_its_hash(trunk: Path) -> None:
    with pytest.raises(SettingsError, match=r"part at step 0, before 4:\n  data\.train: .*corpus there, .*validation"):
        _fork(trunk, f"data.train={trunk.parent / 'validation'}")


def test_a_second_attempt_of_a_fork_puts_the_lines_of_the_first_aside(trunk: Path) -> None:
    """It was killed behind step 6 and before a checkpoint; it begins at step 4 again, not at the trunk's beginning."""
    folder = trunk.parent / "again"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in (4, 5, 6)))
    checkpoint = trunk.parent / "run" / "checkpoints" / "step-00000004"
    case = RunCase(str(trunk), "zero0", (f"run.dir={folder}", f'fork={{from="{checkpoint}", step=4}}'))
    run_distributed([case], world_size=1)
    assert [line["step"] for line in read_metrics(folder)] == [4, 5, 6, 7, 8]
    assert len((folder / "metrics.superseded.jsonl").read_text().splitlines()) == 3
    assert "tokens" in read_metrics(folder)[0]
