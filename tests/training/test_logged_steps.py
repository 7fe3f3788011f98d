"""Logged steps: which, with which rates, and the same numbers for everyone who writes them."""

import errno
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.runs import write_run
from toolkit.core.errors import UserError
from toolkit.engine.gpus import peak_flops
from toolkit.model import training_flops
from toolkit.objectives.mixture import alone
from toolkit.objectives.schedule import Phase, PhaseRows
from toolkit.run import load_run
from toolkit.run.load import declare_run
from toolkit.run.metrics import scalars
from toolkit.testing.models import tiny_settings
from toolkit.training.logged_steps import LogHook, TensorBoardWriter, open_writers
from toolkit.training.run_state import RunState, StepCounts, StepInfo, StepMetrics
from toolkit.training.speed import Speed, known_peak_flops, peak_flops_of


class _Kept:
    path = Path("kept")

    def __init__(self):
        self.lines, self.closed_by = [], []

    def append(self, line):
        self.lines.append(line)

    def close(self, error):
        self.closed_by.append(error)


def _info(step, *, stop=100):
    state = RunState(step, 100 * step, bytes(16))
    return StepInfo(state, Phase(0, alone("mlm"), 0, stop, PhaseRows(1)), "bidirectional", is_start=step == 0)


def _trained(hook, step, *, seconds=0.5, stop=100, losses=None):
    """What the loop tells a hook of one step."""
    info = _info(step, stop=stop)
    if losses is not None:
        hook.after_evaluation(info, losses)
    metrics = StepMetrics(2.0, 1.0, 1e-3, StepCounts((40,), (40.0,), tokens=100, attended_pairs=900), seconds)
    hook.after_step(info, metrics)


@pytest.fixture
def logged():
    """A hook that logs every second step, and the lines it wrote."""
    kept = _Kept()
    return LogHook([kept], every=2, speed=Speed(tiny_settings(), peak_flops=1e9)), kept.lines


def test_every_nth_the_evaluated_and_the_last_of_a_phase(logged):
    hook, lines = logged
    hook.on_start(_info(0))
    for step in (1, 2, 3):
        _trained(hook, step)
    _trained(hook, 5, losses={"mlm": 1.0})
    _trained(hook, 7, stop=7)
    _trained(hook, 9)
    assert [line["step"] for line in lines] == [2, 5, 7]
    assert [line.get("eval_loss") for line in lines] == [None, {"mlm": 1.0}, None]
    for _ in range(2):
        hook.on_end(RunState(9))
    assert [line["step"] for line in lines] == [2, 5, 7, 9], "the last of the process, once"


def test_rates_are_over_the_steps_since_the_last_line(logged):
    hook, lines = logged
    for step, seconds in ((1, 0.5), (2, 0.5), (3, 1.5), (4, 0.5)):
        _trained(hook, step, seconds=seconds)
    flops = training_flops(tiny_settings(), tokens=200, targets=80, attended_pairs=1800)
    assert [line["tokens_per_second"] for line in lines] == [200.0, 100.0]
    assert [line["model_flops_per_second"] for line in lines] == pytest.approx([flops, flops / 2], rel=1e-5)
    assert [line["mfu"] for line in lines] == pytest.approx([flops / 1e9, flops / 2e9], rel=1e-3)


def test_without_a_known_peak_there_is_no_mfu():
    kept = _Kept()
    _trained(LogHook([kept], every=1, speed=Speed(tiny_settings(), peak_flops=None)), 2)
    assert "mfu" not in kept.lines[0]
    assert kept.lines[0]["model_flops_per_second"] > 0


def test_step_0_has_losses_and_no_rates(logged):
    hook, lines = logged
    hook.after_evaluation(_info(0), {"clm": 3.0})
    (line,) = lines
    assert set(line) == {"step", "phase", "objective", "attention", "tokens", "data_digest", "eval_loss"}
    assert scalars(line) == {"validation/clm": 3.0}


def test_every_writer_is_closed_though_one_fails():
    class Fails(_Kept):
        path = Path("/run/tensorboard")

        def close(self, error):
            raise OSError(errno.EFBIG, "File too large")

    first, last, error = _Kept(), _Kept(), RuntimeError()
    hook = LogHook([first, Fails(), last], every=1, speed=Speed(tiny_settings(), peak_flops=None))
    with pytest.raises(UserError, match="could not write /run/tensorboard: File too large"):
        hook.close(error)
    assert first.closed_by == last.closed_by == [error]


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("A100-SXM4-40GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA B200", 2250),
        ("NVIDIA A40", 149.7),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("AMD Instinct MI250X", 191.5),
        ("AMD Instinct MI300X", 1307.4),
    ],
)
def test_peaks_by_name(name, tflops):
    assert peak_flops(name) == tflops * 1e12


@pytest.mark.parametrize(
    "name",
    [
        "Some Other Device", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "GRID A100-10C",
        "NVIDIA H100XM-80C", "NVIDIA A100-SXM-64GB", "NVIDIA H100 80GB HBM2e", "NVIDIA RTX A1000 Laptop GPU",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA L40", "NVIDIA A10G", "NVIDIA H20", "NVIDIA GB200",
        "AMD Instinct MI250X/MI250", "AMD Instinct MI300A", "Tesla V100-SXM2-32GB", "",
    ],
)  # fmt: skip
def test_a_name_that_holds_that_of_another_device_has_no_peak(name):
    assert peak_flops(name) is None


def test_a_cpu_has_no_peak():
    assert known_peak_flops(torch.device("cpu"), precision="bf16") is None


def test_a_known_peak_is_that_of_bf16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    peaks = [known_peak_flops(torch.device("cuda", 0), precision=precision) for precision in ("bf16", "fp32")]
    assert peaks == [989e12, None]


def test_the_peak_of_a_run_is_that_of_all_its_ranks(tmp_path):
    settings = load_run(str(write_run(tmp_path)), ["log.peak_tflops=2.5"])
    ranks = SimpleNamespace(device=torch.device("cpu"), world_size=3)
    assert peak_flops_of(settings, ranks) == pytest.approx(7.5e12)


@pytest.mark.parametrize("wanted", ["true", "false"])
def test_tensorboard_is_written_where_it_is_wanted(tmp_path, wanted):
    declared = declare_run(str(write_run(tmp_path)), [f"log.tensorboard={wanted}"])
    (tmp_path / "run").mkdir()
    writers = open_writers(declared, resumed_step=None)
    for writer in writers:
        writer.close(None)
    assert (tmp_path / "run" / "tensorboard").is_dir() == (wanted == "true")


def test_tensorboard_gets_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer, kept = TensorBoardWriter(tmp_path, resumed_step=None), _Kept()
    hook = LogHook([writer, kept], every=2, speed=Speed(tiny_settings(), peak_flops=1e12))
    _trained(hook, 2, losses={"clm": 3.0})
    hook.close(None)
    (line,) = kept.lines
    read = EventAccumulator(str(tmp_path)).Reload()
    expected = scalars(line)
    assert set(read.Tags()["scalars"]) == set(expected)
    assert {"loss/mlm", "mfu", "model_flops_per_second", "tokens_per_second", "validation/clm"} <= set(expected)
    for name, value in expected.items():
        (event,) = read.Scalars(name)
        assert (event.step, event.value) == (2, pytest.approx(value, rel=1e-6))


def test_tensorboard_forgets_what_a_later_start_makes_again(tmp_path, monkeypatch):
    """Also step 0, where a run ended before its first checkpoint and starts anew."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, (resumed_step, steps) in enumerate(((None, (0, 1, 2, 3)), (None, (0, 1, 2)), (1, (2, 3)))):
        # Files of one second would be read in any order.
        monkeypatch.setattr(time, "time", lambda second=1e9 + start: second)
        writer = TensorBoardWriter(tmp_path, resumed_step=resumed_step)
        for step in steps:
            writer.append({"step": step, "objective": "mlm", "eval_loss": {"mlm": float(resumed_step or 0)}})
        writer.close(None)
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("validation/mlm")
    assert [(event.step, event.value) for event in events] == [(0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0)]
