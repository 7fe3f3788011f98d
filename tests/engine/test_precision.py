"""The compute dtype where a run leaves it open: measured once, kept by processor, threads and version of torch."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from toolkit.engine import precision as module
from toolkit.engine.precision import Turn, choose_precision, faster_on_this_cpu, time_steps, timed_speed


class _Measure:
    """Injected times; counts its calls and the threads it was asked about."""

    def __init__(
        self, fp32: float, bf16: float, *, wall: tuple[float, ...] = (1, 1, 1), cpu: tuple[float, ...] = (1, 1, 1)
    ) -> None:
        """`wall` and `cpu` are how much longer a bf16 step takes in each turn."""
        self.threads = list[int]()
        self._turns = [
            Turn({"fp32": fp32, "bf16": bf16 * more}, {"fp32": fp32, "bf16": bf16 * longer})
            for more, longer in zip(wall, cpu, strict=True)
        ]

    def __call__(self, threads: int) -> list[Turn]:
        self.threads.append(threads)
        return self._turns


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where times are kept, one for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "encoder-pretraining-toolkit"


@pytest.mark.parametrize(
    ("fp32", "bf16", "chosen"),
    [(1.0, 1.0, "fp32"), (1.0, 1.8, "fp32"), (1.19, 1.0, "fp32"), (1.2, 1.0, "bf16"), (2.0, 1.0, "bf16")],
)
def test_bf16_is_chosen_where_it_is_a_fifth_faster(fp32: float, bf16: float, chosen: str) -> None:
    precision, reason = faster_on_this_cpu(2, measure=_Measure(fp32, bf16))
    assert precision == chosen
    assert f"{bf16:.3f} s in bf16 and {fp32:.3f} s in fp32" in reason


def test_a_machine_is_measured_once(cache: Path) -> None:
    first, second = _Measure(2.0, 1.0), _Measure(1.0, 2.0)
    assert faster_on_this_cpu(2, measure=first)[0] == "bf16"
    precision, reason = faster_on_this_cpu(2, measure=second)
    assert (precision, first.threads, second.threads) == ("bf16", [2], [])
    assert str(cache) in reason


@pytest.mark.parametrize(
    ("wall", "cpu", "is_kept"),
    [((1, 1.19, 1), (9, 1, 1), True), ((1, 9, 3), (1, 1.1, 1), True), ((1, 9, 3), (1, 1.3, 1), False)],
)
def test_a_busy_moment_decides_for_one_run(
    cache: Path,
    caplog: pytest.LogCaptureFixture,
    wall: tuple[float, ...],
    cpu: tuple[float, ...],
    is_kept: bool,
) -> None:
    """Only where neither wall nor CPU time gives the same speed-up in all turns."""
    measure = _Measure(2.0, 1.0, wall=wall, cpu=cpu)
    assert [faster_on_this_cpu(2, measure=measure)[0] for _ in range(2)] == ["bf16"] * 2
    assert (measure.threads, bool(list(cache.glob("precision-*.json")))) == ([2], is_kept)
    assert ("for this run only" in caplog.text) == (not is_kept)


def test_the_speed_of_the_timed_step_is_that_of_what_is_kept() -> None:
    assert timed_speed(2, "bf16") is None
    faster_on_this_cpu(2, measure=_Measure(2.0, 1.0))
    assert timed_speed(2, "bf16") == 2 * timed_speed(2, "fp32") > 1e9


def test_of_those_that_start_together_one_measures() -> None:
    measure = _Measure(2.0, 1.0)

    def slowly(threads: int) -> list[Turn]:
        time.sleep(0.2)
        return measure(threads)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: faster_on_this_cpu(2, measure=slowly)[0], range(3)))
    assert found == ["bf16"] * 3
    assert measure.threads == [2]


def test_another_processor_thread_count_step_or_torch_is_measured_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = _Measure(2.0, 1.0)

    def choose(threads: int = 2) -> None:
        faster_on_this_cpu(threads, measure=measure)

    choose()
    choose(threads=1)
    faster_on_this_cpu(2, step="another", measure=measure)
    monkeypatch.setattr(module, "_cpu", lambda: "another")
    choose()
    monkeypatch.setattr(module, "version", lambda name: "9.9")
    choose()
    choose()
    assert measure.threads == [2, 1, 2, 2, 2]
    assert len(list(cache.glob("precision-*.json"))) == 5


@pytest.mark.parametrize("damage", ["", "[]", '{"key": {}, "value": {"fp32": 2.0, "bf16": 1.0}}', "damaged", "2.0"])
def test_times_that_cannot_be_read_are_measured_again(cache: Path, damage: str) -> None:
    faster_on_this_cpu(2, measure=_Measure(2.0, 1.0))
    (kept,) = cache.glob("*.json")
    kept.write_text(kept.read_text().replace("2.0", "3.0") if damage == "2.0" else damage)
    measure = _Measure(1.0, 1.0)
    assert faster_on_this_cpu(2, measure=measure)[0] == "fp32"
    assert measure.threads == [2]
    assert json.loads(kept.read_text())["value"] == {"fp32": 1.0, "bf16": 1.0}


def test_a_cache_that_cannot_be_written_only_costs_time(cache: Path) -> None:
    cache.write_text("")
    assert faster_on_this_cpu(2, measure=_Measure(2.0, 1.0))[0] == "bf16"


def test_stage_0_and_gpus_need_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "faster_on_this_cpu", None)
    assert choose_precision(0, ranks_per_machine=1)[0] == "fp32"
    monkeypatch.setattr("toolkit.engine.gpus.has_gpu", lambda: True)
    assert choose_precision(1, ranks_per_machine=1)[0] == "bf16"
    assert choose_precision(0, ranks_per_machine=1)[0] == "fp32"


@pytest.mark.parametrize(("asked", "ranks", "threads"), [(None, 1, 6), (None, 2, 3), (None, 8, 1), ("4", 2, 4)])
def test_the_threads_of_a_rank(monkeypatch: pytest.MonkeyPatch, asked: str | None, ranks: int, threads: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr(module, "faster_on_this_cpu", lambda threads: ("fp32", str(threads)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert choose_precision(1, ranks_per_machine=ranks) == ("fp32", str(threads))


def test_generations_are_told_apart_by_what_they_can(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    first = "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx512f avx512_bf16 sse"
    info.write_text(f"processor\t: 0\n{first}\n\nprocessor\t: 1\nmodel name\t: other\n")
    assert module._cpu(info) == "AuthenticAMD, AMD EPYC, avx512_bf16, avx512f"
    assert module._cpu(tmp_path / "missing")


def test_the_measurement_leaves_threads_as_they_were() -> None:
    import torch

    before = torch.get_num_threads()
    turns = time_steps(1)
    assert torch.get_num_threads() == before
    assert len(turns) == 3
    for seconds in (seconds for turn in turns for seconds in turn):
        assert set(seconds) == {"fp32", "bf16"}
