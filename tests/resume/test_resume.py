"""A run that is cut off and started again equals the one that was not, bit for bit."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.layouts import stage3
from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.checkpoint.read import Checkpoint, open_checkpoint
from toolkit.core.errors import CheckpointError, CorpusError, SettingsError
from toolkit.run import RunFolder, load_run
from toolkit.run.load import declare_run
from toolkit.run.resolve import resolve_run
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.testing.distributed import run_distributed
from toolkit.training import pretrain

# Whole runs on several ranks.
pytestmark = pytest.mark.costs(20)

_SWITCH = 3
_LAST = 2 * _SWITCH
_KEEP_LAST = "checkpoint.keep=1"
_TWO_GROUPS = "train.decay_norms_and_embeddings=false"
_AT_THE_SWITCH = (f"checkpoint.every={_SWITCH}", "checkpoint.keep=9")


@dataclass(frozen=True)
class CutOff:
    """Runs to the end; then, for each of `stops`, once more as if killed at the first and stopped at each later step.

    Whatever is lost at one of them is missing from there to the end. Rank 0 compares.
    """

    run_file: str
    folder: str
    ds_config: str
    overrides: tuple[str, ...]
    stops: tuple[tuple[int, ...], ...] = ((_SWITCH - 1, _SWITCH, _SWITCH + 1),)

    def __call__(self) -> list[str]:
        from toolkit.engine.ranks import join_ranks

        ranks = join_ranks()
        whole, differences = Path(self.folder) / "whole", []
        self._run(whole, f"checkpoint.keep_at={[killed for killed, *_ in self.stops]}", until=None)
        for killed, *stops in self.stops:
            again = Path(self.folder) / f"again-{killed}"
            if ranks.rank == 0:
                shutil.copytree(whole, again)
                for checkpoint in (again / "checkpoints").glob("step-*"):
                    if int(checkpoint.name.removeprefix("step-")) > killed:
                        shutil.rmtree(checkpoint)
            dist.barrier()
            for until in (*stops, None):
                self._run(again, _KEEP_LAST, until=until)
            dist.barrier()
            differences += compare(whole, again)
        return differences

    def _run(self, folder: Path, kept: str, *, until: int | None) -> None:
        RunCase(self.run_file, self.ds_config, (kept, *self.overrides, f"run.dir={folder}"), until)()


def compare(whole: Path, again: Path) -> list[str]:
    """What differs between two finished run folders: lines of metrics, and every tensor of the last checkpoint.

    The second may have a line more for the last step of each process that it took.
    """
    lines = _comparable(whole)
    steps = {line["step"] for line in lines}
    found = [
        f"metrics: {one} is not {other}"
        for one, other in zip(lines, [line for line in _comparable(again) if line["step"] in steps], strict=True)
        if one != other
    ]
    return found + differing_tensors(open_checkpoint(whole), open_checkpoint(again))


def differing_tensors(first: Checkpoint, second: Checkpoint) -> list[str]:
    """Names of the weights and moments that two checkpoints do not have bit for bit in common."""
    assert first.names == second.names
    pairs = [(first.parameter(name), second.parameter(name)) for name in first.names]
    return [
        f"{one.name}.{kind}"
        for one, other in pairs
        for kind in ("weight", "exp_avg", "exp_avg_sq")
        if not torch.equal(getattr(one, kind), getattr(other, kind))
    ]


_RATES = ("tokens_per_second", "model_flops_per_second")


def _comparable(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in _RATES} for line in read_metrics(folder)]


@pytest.mark.parametrize("world_size", [1, 2])
def test_resume_before_at_and_after_the_switch(tmp_path, world_size):
    """On two ranks with two parameter groups; `test_phases` has each of these layouts with one."""
    run_file = write_run(tmp_path, phase_steps=_SWITCH)
    layouts = [("zero0", "fp32"), ("zero1", "bf16")]
    groups: tuple[str, ...] = ()
    if world_size > 1:  # one rank shares nothing
        layouts += [("zero2", "fp32"), (stage3(tmp_path), "bf16")]
        groups = (_TWO_GROUPS, "model.tie_word_embeddings=true")
    cases = []
    for ds_config, precision in layouts:
        folder = tmp_path / f"{Path(ds_config).stem}-{precision}"
        folder.mkdir()
        cases.append(CutOff(str(run_file), str(folder), ds_config, (f'precision="{precision}"', *groups)))
    if world_size > 1:
        layouts.append(("zero1", "of a blend"))
        (tmp_path / "blend").mkdir()
        cases.append(CutOff(str(run_file), str(tmp_path / "blend"), "zero1", (_blend(tmp_path),)))
    for layout, case, results in zip(layouts, cases, run_distributed(cases, world_size=world_size), strict=True):
        assert results[0] == [], layout
        # Metrics past the checkpoint are set aside.
        again = Path(case.folder) / f"again-{_SWITCH - 1}"
        assert [line["step"] for line in read_metrics(again)] == list(range(_LAST + 1)), layout
        superseded = (again / "metrics.superseded.jsonl").read_text().splitlines()
        assert len(superseded) == _LAST - (_SWITCH - 1), layout


def test_a_scheduled_run_resumes_from_its_file_and_from_its_run_toml(tmp_path):
    run_file = write_run(tmp_path, phase_steps=2)
    alternate = 'scheduler={kind="alternate",cycles=2}'
    (results,) = run_distributed([CutOff(str(run_file), str(tmp_path), "zero0", (alternate,), ((3,),))], world_size=1)
    assert results[0] == []
    whole, again = tmp_path / "whole", tmp_path / "from-run-toml"
    lines = read_metrics(whole)
    assert [line["objective"] for line in lines if "loss" in line] == ["clm", "clm", "mlm", "mlm"] * 2
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints/step-00000008")
    (results,) = run_distributed([RunCase(str(again / "run.toml"), "zero0", (f"run.dir={again}",))], world_size=1)
    assert results[0][0] == "finished at step 8"
    assert compare(whole, again) == []


@pytest.mark.parametrize("world_size", [1, 2])
def test_resume_in_the_middle_of_ramps(tmp_path, world_size):
    """Of the mask ratio and of the learning rate, on which the loss of every step depends."""
    run_file = write_run(tmp_path, phase_steps=_SWITCH)
    ramps = (
        "objectives.mlm={mask_ratio={start=0.9,stop=0.2,shape='cosine'},min_targets=2}",
        "lr.decay_steps=5",
        "lr.decay=1-sqrt",
        "lr.floor=0.1",
    )
    stops = ((_SWITCH + 1, _SWITCH + 2),)
    (results,) = run_distributed([CutOff(str(run_file), str(tmp_path), "zero0", ramps, stops)], world_size=world_size)
    assert results[0] == []
    targets = [line["targets"] for line in read_metrics(tmp_path / "whole") if line["step"] > _SWITCH]
    assert targets == sorted(targets, reverse=True)
    assert targets[-1] < 0.3 * targets[0]


def test_resume_with_two_parameter_groups(tmp_path):
    """Norms and embeddings without weight decay: each ZeRO stage has to find the moments of both groups at a save.

    With those around the switch, any two of stage, precision and whether embeddings are tied meet.
    """
    run_file = write_run(tmp_path, phase_steps=2)
    cases, layouts = [], [("zero0", "fp32"), ("zero1", "fp32"), ("zero2", "bf16"), (stage3(tmp_path), "fp32")]
    for ds_config, precision in layouts:
        folder = tmp_path / f"{Path(ds_config).stem}-{precision}"
        folder.mkdir()
        overrides = (_TWO_GROUPS, f'precision="{precision}"')
        cases.append(CutOff(str(run_file), str(folder), ds_config, overrides, ((2,),)))
    for layout, results in zip(layouts, run_distributed(cases, world_size=2), strict=True):
        assert results[0] == [], layout


def _blend(folder: Path) -> str:
    corpora = [(folder / "corpus", 3), (folder / "validation", 1)]
    return "data.train=[" + ", ".join(f'{{path="{path}", weight={weight}}}' for path, weight in corpora) + "]"


@dataclass(frozen=True)
class ChangedLayout:
    """Half a run in one layout, the other half in another."""

    run_file: str
    folder: str
    first: str
    second: str

    def __call__(self) -> list[float]:
        common = (f"run.dir={self.folder}",)
        RunCase(self.run_file, self.first, common, until=_SWITCH)()
        changed = (*common, "train.micro_batch_rows=4")
        _, lines = RunCase(self.run_file, self.second, changed)()
        return [line["loss"] for line in lines if "loss" in line]


def test_the_layout_may_change_between_two_halves(tmp_path):
    run_file = write_run(tmp_path, phase_steps=_SWITCH)
    crosses = [("zero0", "zero3"), ("zero3", "zero1"), ("zero2", "zero0"), ("zero1", "zero2")]
    cases = [
        ChangedLayout(str(run_file), str(tmp_path / f"{first}-{second}"), first, second) for first, second in crosses
    ]
    reference = RunCase(str(run_file), "zero0", (f"run.dir={tmp_path / 'reference'}",))
    (expected, *others) = run_distributed([reference, *cases], world_size=2)
    losses = [line["loss"] for line in expected[0][1] if "loss" in line]
    for cross, results in zip(crosses, others, strict=True):
        assert results[0] == pytest.approx(losses, rel=1e-5), cross


def test_the_number_of_ranks_may_change(tmp_path):
    run_file = write_run(tmp_path, phase_steps=_SWITCH)
    common = (f"run.dir={tmp_path / 'run'}", *_AT_THE_SWITCH)
    ((_, whole),) = run_distributed([RunCase(str(run_file), "zero2", common)], world_size=2)[0][:1]
    shutil.rmtree(RunFolder(tmp_path / "run").checkpoint(_LAST))
    ((outcome, lines),) = run_distributed([RunCase(str(run_file), "zero1", common)], world_size=1)[0]
    assert outcome == f"finished at step {_LAST}"
    assert [line["data_digest"] for line in lines] == [line["data_digest"] for line in whole]
    assert lines[_LAST]["loss"] == pytest.approx(whole[_LAST]["loss"], rel=1e-5)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A folder with two runs that were cut off at the switch, `run` and, of a blend, `blended`; and their run file."""
    folder = tmp_path_factory.mktemp("started")
    run_file = str(write_run(folder, phase_steps=_SWITCH))
    blended = (_blend(folder), f"run.dir={folder / 'blended'}")
    run_distributed([RunCase(run_file, "zero0", (*_AT_THE_SWITCH, *more)) for more in ((), blended)], world_size=1)
    for name in ("run", "blended"):
        shutil.rmtree(RunFolder(folder / name).checkpoint(_LAST))
    return folder, run_file


def _go_on(run_file: str, *overrides: str) -> None:
    """As far as it goes before any rank starts."""
    resolve_run(declare_run(run_file, overrides), ds_config="zero0", num_ranks=1)


def test_other_settings_are_refused_by_name(started):
    folder, run_file = started
    with pytest.raises(SettingsError) as refused:
        _go_on(run_file, "lr.peak=0.5")
    assert "lr.peak: was 0.01, now 0.5" in str(refused.value)
    assert "toolkit branch" in str(refused.value)
    assert f"Resume with the same ones (toolkit train {folder / 'run'}/run.toml), or" in str(refused.value)


def test_another_corpus_in_the_same_place_is_refused(started):
    folder, run_file = started
    corpus, kept = folder / "corpus", folder / "kept"
    _go_on(run_file)
    corpus.rename(kept)
    try:
        documents = random_documents(160, vocabulary_size=97, max_length=90, first_id=3, seed=5)
        write_token_corpus(corpus, documents, vocabulary_size=97, eos=0, pad=1, mask=2)
        with pytest.raises(CorpusError, match=r"^data\.train names another corpus than when the run was started"):
            _go_on(run_file)
        with pytest.raises(CorpusError, match=r"^data\.train\.0\.path names another corpus than when the run was"):
            _go_on(run_file, f"run.dir={folder / 'blended'}", _blend(folder))
    finally:
        shutil.rmtree(corpus)
        kept.rename(corpus)


def test_a_corpus_in_another_place_is_the_same(started):
    folder, run_file = started
    moved = (folder / "corpus").rename(folder / "moved")
    try:
        _go_on(run_file, f"data.train={moved}")
    finally:
        moved.rename(folder / "corpus")


def test_other_weights_are_refused_by_name(started):
    folder, run_file = started
    with pytest.raises(SettingsError, match=r"data\.train\.0\.weight: was 3\.0, now 4\.0"):
        _go_on(run_file, f"run.dir={folder / 'blended'}", _blend(folder).replace("weight=3", "weight=4"))


def test_without_any_intact_checkpoint_nothing_is_started_over(started, tmp_path):
    folder, run_file = started
    shutil.copytree(folder / "run", tmp_path / "run")
    (RunFolder(tmp_path / "run").checkpoint(_SWITCH) / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"^no checkpoint in"):
        pretrain(load_run(run_file, [f"run.dir={tmp_path / 'run'}"]), ds_config="zero0")
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == list(range(_LAST + 1))


def test_a_finished_run_says_so(tmp_path):
    case = RunCase(str(write_run(tmp_path, phase_steps=_SWITCH)))
    first, second = run_distributed([case, case], world_size=1)
    assert (first[0][0], second[0][0]) == (f"finished at step {_LAST}", f"already finished at step {_LAST}")
    assert len(second[0][1]) == _LAST + 1
    # On any number of ranks.
    others = run_distributed([RunCase(case.run_file, "zero1", ("train.micro_batch_rows=4",))], world_size=2)
    assert others[0][0][0] == f"already finished at step {_LAST}"


def test_a_finished_run_whose_last_checkpoint_is_damaged_resumes_on_other_ranks(tmp_path):
    run_file = str(write_run(tmp_path, phase_steps=_SWITCH))
    run_distributed([RunCase(run_file, "zero1", _AT_THE_SWITCH)], world_size=1)
    whole = read_metrics(tmp_path / "run")
    weights = next(RunFolder(tmp_path / "run").checkpoint(_LAST).glob("weights-*"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    outcome, lines = run_distributed([RunCase(run_file, "zero2", _AT_THE_SWITCH)], world_size=2)[0][0]
    assert outcome == f"finished at step {_LAST}"
    again, before = ([line["loss"] for line in found[_SWITCH + 1 :]] for found in (lines, whole))
    assert again == pytest.approx(before, rel=1e-5)
