"""Merges of checkpoints: the mean to the last bit, in little memory, and a checkpoint like any other."""

import hashlib
import json
from collections.abc import Callable
from itertools import accumulate
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.checkpoints import write_checkpoint, write_tiny_run
from tests.support.memory import allocated_by
from toolkit.checkpoint import tensor_files
from toolkit.checkpoint.manifest import manifest_bytes, read_manifest
from toolkit.checkpoint.read import ParameterState, open_checkpoint
from toolkit.conversion import to_hf
from toolkit.conversion.merging import merge
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import get_task
from toolkit.inspection import inspect, verify

Make = Callable[..., Path]


@pytest.fixture
def run(make_checkpoint: Make) -> Path:
    """A run of checkpoints at steps 20, 40, 60, 80 and 100, with random weights."""
    for step in range(20, 101, 20):
        last = make_checkpoint(step)
    return last.parents[1]


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    ("weights", "numbers"),
    [
        ("uniform", [1, 1, 1, 1, 1]),
        ("linear", [1, 2, 3, 4, 5]),
        ("1-sqrt", [sqrt(place + 1) - sqrt(place) for place in range(5)]),
        ("3,0,1.5,0.25,1", [3, 0, 1.5, 0.25, 1]),
    ],
)
def test_the_mean_is_that_of_numpy_in_fp64_to_the_last_bit(
    make_checkpoint: Make, tmp_path: Path, weights: str, numbers: list[float], is_tied: bool
) -> None:
    folders = [make_checkpoint(step, tie_word_embeddings=is_tied) for step in range(20, 101, 20)]
    parents = merge(folders, tmp_path / "out", weights=weights)
    assert [parent.weight for parent in parents] == [number / sum(numbers) for number in numbers]
    sources, merged = [open_checkpoint(folder) for folder in folders], open_checkpoint(tmp_path / "out")
    assert merged.names == sources[0].names
    assert ("lm_head.weight" in merged.names) != is_tied
    for name in merged.names:
        arrays = [source.weight(name).numpy().astype(np.float64) for source in sources]
        mean = sum(number * array for number, array in zip(numbers, arrays, strict=True)) / sum(numbers)
        assert np.array_equal(merged.weight(name).numpy(), mean.astype(np.float32)), name


def test_weights_stand_for_a_decay_of_the_updates_between_checkpoints(tmp_path: Path, tokenizer_folder: Path) -> None:
    """With equal weights a linear one; with the others that of 1-sqrt, and one that falls faster to its end."""
    made = write_tiny_run(tmp_path, steps=(1,)) / "checkpoints/step-00000001"
    model = open_checkpoint(made)
    settings = model.manifest.settings
    updates = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    for step, weight in enumerate(accumulate(updates.astype(np.float64)), start=10):
        states = [
            ParameterState(name, *[torch.from_numpy(weight).float() if "norm" in name else model.weight(name)] * 3)
            for name in model.names
        ]
        write_checkpoint(made.parent, step, states=states, tokenizer_folder=tokenizer_folder, settings=settings)
    for weights, rate in (
        ("uniform", lambda done: 1 - done),
        ("1-sqrt", lambda done: 1 - sqrt(done)),
        ("linear", lambda done: 1 - 25 * done * (done + 0.2) / 30),
    ):
        merge([made.parents[1]], tmp_path / weights, steps="10..14", weights=weights)
        expected = updates[0] + sum(rate(number / 5) * updates[number] for number in range(1, 5))
        merged = open_checkpoint(tmp_path / weights).weight("model.norm.weight").numpy()
        np.testing.assert_allclose(merged, expected, rtol=0, atol=1e-6)


def test_a_few_rows_are_in_memory_whatever_the_size_and_number(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block in fp32, the sum and a term of it in fp64, beside the mapping of one file, which takes no memory."""
    monkeypatch.setattr(tensor_files, "_BLOCK_BYTES", 1 << 12)
    peaks = []
    for number in (2, 5):
        out = tmp_path / f"out-{number}"
        peaks.append(allocated_by(lambda out=out, number=number: merge([run], out, steps=f"1..{20 * number}")).peak)
    largest = max(file.stat().st_size for file in run.rglob("weights-*"))
    assert largest > 80 * (1 << 12)
    assert peaks[0] == peaks[1] < largest + 8 * (1 << 12)


def test_a_merge_is_a_checkpoint_like_any_other(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "merged"
    parents = merge([run], out, steps="40..100:30")
    assert [(parent.path, parent.step) for parent in parents] == [
        (str(run / f"checkpoints/step-{step:08d}"), step) for step in (40, 100)
    ]
    for parent in parents:
        assert parent.sha256 == hashlib.sha256((Path(parent.path) / "manifest.json").read_bytes()).hexdigest()
    manifest, last = read_manifest(out), read_manifest(Path(parents[-1].path))
    same = ("step", "tokens", "data_position", "data_digest", "settings", "vocabulary", "origin")
    assert all(getattr(manifest, key) == getattr(last, key) for key in same)
    assert (manifest.merged, manifest.has_moments, manifest.losses) == (parents, False, {})
    # Old readers know no other key than they did before.
    assert "merged" not in json.loads((Path(parents[0].path) / "manifest.json").read_text())
    assert sorted(path.name for path in out.iterdir()) == [
        "manifest.json",
        "tokenizer",
        "weights-00000-of-00001.safetensors",
    ]
    assert "is intact" in verify(out)[0]
    inspect(out, num_rows=0)
    # A path may be longer than a line.
    shown = "".join(capsys.readouterr().out.split())
    assert f"mergedfrom{parents[0].path}(step40),weight0.5" in shown
    assert "weights,nooptimizer'smoments" in shown
    to_hf(out, tmp_path / "hf")
    assert "| merged | step 40 x 0.5; step 100 x 0.5 |" in (tmp_path / "hf/README.md").read_text()
    # The newest of a run, and a merge of merges.
    assert [parent.step for parent in merge([run, out], tmp_path / "again", weights="1,3")] == [100, 100]


def test_a_merge_is_fine_tuned(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.tsv"
    table.write_text("text\tlabel\n" + "The miller counts.\tyes\nA fox paints.\tno\n" * 4)
    merge([run], tmp_path / "merged", steps="all")
    settings = get_task("sc").Settings(steps=1)
    files = dict.fromkeys(("train", "test"), table)
    result = finetune("sc", str(tmp_path / "merged"), output=tmp_path / "cell", settings=settings, **files)
    assert 0 <= result.test["accuracy"] <= 1


def _rewrite(folder: Path, **changes: object) -> None:
    (folder / "manifest.json").write_bytes(manifest_bytes(read_manifest(folder).model_copy(update=changes)))


def test_checkpoints_of_other_models_or_tokenizers_are_refused(make_checkpoint: Make, tmp_path: Path) -> None:
    one = make_checkpoint(20)
    for number, (changes, said) in enumerate(
        (
            ({"hidden_size": 32}, r"model.hidden_size: 64 and 32"),
            ({"rope_theta": 5e5}, r"model.rope_theta: [\d.]+ and 500000.0"),
            ({"qk_norm": True}, r"model.qk_norm: False and True\n  shape of model.layers.0"),
        )
    ):
        with pytest.raises(CheckpointError, match=said):
            merge([one, make_checkpoint(40 + number, **changes)], tmp_path / "out")
    # What no weight was trained with may differ.
    other = make_checkpoint(60, max_position_embeddings=4096)
    merge([one, other], tmp_path / "fine")
    vocabulary = read_manifest(other).vocabulary.model_copy(update={"fingerprint": "e" * 64})
    _rewrite(other, vocabulary=vocabulary)
    with pytest.raises(CheckpointError, match=r"tokenizer \(fingerprint\): 'ffffffffffff' and 'eeeeeeeeeeee'"):
        merge([one, other], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_makes_no_mean_is_refused(run: Path, tmp_path: Path) -> None:
    first, second = (run / f"checkpoints/step-000000{step}" for step in (20, 40))
    out = tmp_path / "out"
    for sources, options, said in (
        ([run], {"steps": "20..39"}, "two or more different checkpoints"),
        ([first, second, first], {}, "different checkpoints"),
        ([second, first], {"weights": "1-sqrt"}, "in the order of their steps, and these are of steps 40, 20"),
        ([second, first], {"weights": "linear"}, "in the order of their steps"),
        *(
            ([first, second], {"weights": given}, "a number for each of the 2 checkpoints")
            for given in ("1,2,3", "1", "1,-1", "0,0", "nan,1", "inf,1", "cosine", "1,,2")
        ),
    ):
        with pytest.raises(SettingsError) as caught:
            merge(sources, out, **options)
        assert said in str(caught.value)
    (run / "run.toml").touch()
    with pytest.raises(SettingsError, match="would take the merge for its own"):
        merge([first, second], run / "checkpoints/step-00000050")
