"""GPUs that runs go to: for ranks and for the workers of a grid."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toolkit.core.errors import SettingsError
from toolkit.engine import gpus
from toolkit.experiments.grid import workers
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.workers import GridJob
from toolkit.launching.launch import devices_of_ranks
from toolkit.work.ray import Setting


@pytest.mark.parametrize(
    ("accelerator", "listed", "count", "visible"),
    [
        (None, None, 3, ["0", "1", "2"]),
        ("cuda", "4,5", 2, ["4", "5"]),
        (None, " 4, 5 ", 2, ["4", "5"]),
        (None, "GPU-ab12,GPU-cd34", 2, ["GPU-ab12", "GPU-cd34"]),
        # CUDA hides those after the first that it does not know.
        (None, "0,9,1", 1, ["0"]),
        (None, "2,-1,3", 1, ["2"]),
        (None, "", 0, []),
        (None, "-1", 0, []),
        (None, None, 0, []),
        ("cpu", None, 3, []),
        ("cpu", "4,5", 2, []),
    ],
)  # fmt: skip
def test_visible_gpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accelerator: str | None,
    listed: str | None,
    count: int,
    visible: list[str],
) -> None:
    """`count` is what torch says, which knows the list."""
    monkeypatch.setattr(gpus, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for name, value in (("DS_ACCELERATOR", accelerator), ("CUDA_VISIBLE_DEVICES", listed)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)

    assert gpus.visible_gpus() == visible
    assert gpus.num_devices() == max(1, len(visible))

    environments = workers._places(10**6, None, num_items=4)
    assert [environment.get("CUDA_VISIBLE_DEVICES") for environment in environments] == (visible or [None])

    if visible and not visible[0].isdecimal():
        with pytest.raises(SettingsError, match="takes their numbers"):
            devices_of_ranks(1)
    else:
        assert devices_of_ranks(2 if not visible else len(visible)) == [int(name) for name in visible or ("0", "1")]
    if visible:
        with pytest.raises(SettingsError, match=f"asks for {len(visible) + 1} ranks"):
            devices_of_ranks(len(visible) + 1)


@pytest.mark.parametrize(("accelerator", "asked"), [("cuda", 1), ("cpu", 0)])
def test_workers_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accelerator: str, asked: int) -> None:
    """Its machines may have GPUs where this one has none."""
    monkeypatch.setenv("DS_ACCELERATOR", accelerator)
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(workers, "OnRay", lambda *_, **options: found.append(options))
    cluster = SimpleNamespace(name="a cluster", num_gpus=8, nodes=lambda: [None], room=lambda resources: 8)
    workers._on_ray(cluster, GridJob(GridFolder(tmp_path), []), 1, most=1, logs=tmp_path)
    assert [options["resources"].gpus for options in found] == [asked]
    assert Setting(tmp_path, tmp_path).environment["DS_ACCELERATOR"] == accelerator
