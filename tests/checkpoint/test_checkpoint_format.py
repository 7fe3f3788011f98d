"""What lies in a checkpoint, and that it comes back bit for bit."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from toolkit.checkpoint.manifest import CheckpointManifest, manifest_bytes, read_manifest
from toolkit.checkpoint.read import ParameterState, newest_intact, open_checkpoint
from toolkit.checkpoint.retention import CheckpointSettings
from toolkit.checkpoint.write import begin, split_into_files
from toolkit.core.errors import CheckpointError


def test_no_file_is_larger_than_the_largest_but_for_one_tensor() -> None:
    sizes = {"a": 3, "b": 3, "c": 1, "d": 9, "e": 5, "f": 2}
    assert split_into_files(sizes, 6) == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_what_was_written_is_read_bit_for_bit_whoever_wrote_it(write: Callable[..., Path], num_parts: int) -> None:
    generator = torch.Generator().manual_seed(1)
    odd = torch.tensor([0.1, -0.0, 1e-45, 3.4e38, float("inf")])
    states = [
        ParameterState(f"p.{i}", *(torch.randn(7, i + 1, generator=generator) for _ in range(3))) for i in range(3)
    ] + [ParameterState("odd", odd, odd.flip(0), odd * 2)]

    checkpoint = open_checkpoint(write(20, states=states, num_parts=num_parts))

    assert checkpoint.names == ["odd", "p.0", "p.1", "p.2"]
    for state in states:
        found = checkpoint.parameter(state.name)
        for part in ("weight", "exp_avg", "exp_avg_sq"):
            expected = getattr(state, part)
            assert getattr(found, part).numpy().tobytes() == expected.numpy().tobytes()
        assert torch.equal(checkpoint.weight(state.name), state.weight)


def test_the_folder_holds_safetensors_tokenizer_and_manifest_only(write: Callable[..., Path]) -> None:
    folder = write(20, num_parts=2)

    assert folder.name == "step-00000020"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == [
        "exp_avg-00000-of-00002.safetensors", "exp_avg-00001-of-00002.safetensors",
        "exp_avg_sq-00000-of-00002.safetensors", "exp_avg_sq-00001-of-00002.safetensors", "manifest.json",
        "tokenizer/more/notes.txt", "tokenizer/tokenizer.json", "weights-00000-of-00002.safetensors",
        "weights-00001-of-00002.safetensors",
    ]  # fmt: skip
    assert open_checkpoint(folder).tokenizer_folder == folder / "tokenizer"
    # The library that everyone else reads them with agrees.
    tensors = load_file(folder / "exp_avg_sq-00001-of-00002.safetensors")
    assert list(tensors) == ["layer.1.weight"]
    assert torch.equal(tensors["layer.1.weight"], torch.full((5,), 2012.0))


def test_the_manifest_says_where_the_run_stood(write: Callable[..., Path]) -> None:
    folder = write(3, settings={"lr": {"peak": 5e-4, "warmup_steps": None}, "name": "Orléans"})

    manifest = open_checkpoint(folder).manifest

    assert (manifest.step, manifest.tokens, manifest.data_position, manifest.data_digest) == (3, 3000, 24, f"{3:032x}")
    assert manifest.settings == {"lr": {"peak": 5e-4, "warmup_steps": None}, "name": "Orléans"}
    assert manifest.vocabulary.special_ids == (0, 1, 2)
    assert manifest.tensors["layer.0.weight"].shape == (3, 4)
    assert manifest.losses == {"clm": 5.5, "mlm": 4.25}
    assert CheckpointManifest.model_validate(manifest.model_dump(mode="json")) == manifest


def test_equal_state_gives_equal_files(write: Callable[..., Path], root: Path) -> None:
    first = {path.name: path.read_bytes() for path in write(4).rglob("*") if path.is_file()}
    (root / "step-00000004").rename(root / "elsewhere")
    second = {path.name: path.read_bytes() for path in write(4).rglob("*") if path.is_file()}
    assert first == second


def test_a_loss_that_is_not_finite_cannot_be_recorded(write: Callable[..., Path]) -> None:
    manifest = open_checkpoint(write(1)).manifest
    with pytest.raises(ValueError, match="finite"):
        CheckpointManifest.model_validate(manifest.model_dump() | {"losses": {"mlm": float("nan")}})


def test_a_newer_format_is_refused_with_its_version(write: Callable[..., Path]) -> None:
    folder = write(1)
    newer = read_manifest(folder).model_copy(update={"format_version": 2, "toolkit_version": "9.1"})
    (folder / "manifest.json").write_bytes(manifest_bytes(newer))
    with pytest.raises(CheckpointError, match=r"format version 2; this toolkit reads version 1.*toolkit 9\.1"):
        open_checkpoint(folder)


def test_a_manifest_without_a_field_is_refused_by_name(write: Callable[..., Path]) -> None:
    folder = write(1)
    incomplete = read_manifest(folder).model_copy(update={"tokens": "many"})
    with pytest.warns(UserWarning, match="serialized"):
        (folder / "manifest.json").write_bytes(manifest_bytes(incomplete))
    with pytest.raises(
        CheckpointError,
        match=r"manifest.json does not describe a checkpoint: invalid value for tokens:",
    ):
        open_checkpoint(folder)


def test_a_file_elsewhere_is_no_part_of_a_checkpoint(write: Callable[..., Path]) -> None:
    folder = write(1)
    manifest = read_manifest(folder)
    for changed in (
        {"files": {**manifest.files, "../secret": next(iter(manifest.files.values()))}},
        {"tensors": {name: entry.model_copy(update={"file": "../x"}) for name, entry in manifest.tensors.items()}},
    ):
        (folder / "manifest.json").write_bytes(manifest_bytes(manifest.model_copy(update=changed)))
        with pytest.raises(CheckpointError, match="expected the printable name of a file inside the folder"):
            open_checkpoint(folder)


def test_run_folder_root_and_step_folder_all_open(write: Callable[..., Path], root: Path) -> None:
    write(1)
    newest = write(2)
    for path in (root.parent, root, newest, str(root.parent)):
        assert open_checkpoint(path).path == newest
    assert (root / "latest").read_text() == "step-00000002\n"
    assert newest_intact(root / "missing") == (None, [])


def test_steps_sort_as_numbers_even_past_eight_digits(write: Callable[..., Path], root: Path) -> None:
    write(99_999_999)
    newest = write(100_000_000)
    assert newest.name == "step-100000000"
    assert open_checkpoint(root).path == newest


def test_an_unknown_parameter_is_named(write: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=r"has no parameter layer\.9\.weight"):
        open_checkpoint(write(1)).weight("layer.9.weight")


def test_a_parameter_that_is_not_fp32_is_a_mistake_of_the_program(root: Path) -> None:
    from toolkit.checkpoint.write import write_part

    half = [ParameterState("p", *(torch.zeros(2, dtype=torch.bfloat16) for _ in range(3)))]
    folder = begin(root, 1)
    with pytest.raises(AssertionError, match=r"p is torch\.bfloat16"):
        write_part(folder, part=0, num_parts=1, parameters=half)
    assert not list(root.glob("step-*"))


def test_a_writer_without_a_parameter_writes_no_file(root: Path) -> None:
    from toolkit.checkpoint.write import PartEntry, write_part

    folder = begin(root, 1)
    assert write_part(folder, part=7, num_parts=10_240, parameters=[]) == PartEntry(tensors={}, files={})
    assert list(folder.iterdir()) == []


def test_bounds_of_settings() -> None:
    for key in ("every", "keep", "keep_every"):
        with pytest.raises(ValueError, match="greater than or equal to 1"):
            CheckpointSettings.model_validate({key: 0})


def test_settings_manifest_and_names_need_no_torch() -> None:
    code = "import sys; from toolkit.checkpoint import folders, manifest, retention; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"False\n"
