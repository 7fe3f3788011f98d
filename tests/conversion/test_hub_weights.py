"""The safetensors of a model: what is read though it is stored in an odd way, and how damage is told."""

import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.hf_decoders import edit_tensors, save_decoder
from toolkit.checkpoint import tensor_files
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import from_hf
from toolkit.core.errors import CheckpointError
from toolkit.testing.tolerances import HUGGING_FACE_LOGITS

UP, NORM = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"


def test_a_tied_matrix_stored_under_its_heads_name_is_read(tmp_path: Path) -> None:
    """As safetensors' `save_model` writes a tied model: the first of the two names stays."""
    model = save_decoder("smollm", tmp_path / "model")
    edit_tensors(
        tmp_path / "model", lambda them: them.update({"lm_head.weight": them.pop("model.embed_tokens.weight")})
    )
    report = from_hf(tmp_path / "model", tmp_path / "out")
    assert report.max_difference <= HUGGING_FACE_LOGITS
    embedding = open_checkpoint(tmp_path / "out").weight("model.embed_tokens.weight")
    assert torch.equal(embedding[: model.config.vocab_size], model.get_parameter("model.embed_tokens.weight").detach())


def test_what_is_left_out_without_loss_is_told(tmp_path: Path) -> None:
    save_decoder("smollm", tmp_path / "model")

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    edit_tensors(tmp_path / "model", add)
    changes = from_hf(tmp_path / "model", tmp_path / "out").changes
    assert "lm_head.weight is stored beside model.embed_tokens.weight, equals it, and is left out" in changes
    assert "the stored rotary angles (inv_freq) are left out: they follow from config.json" in changes


def _offsets(name: str, *, by: int) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header[name]["data_offsets"] = [offset + by for offset in header[name]["data_offsets"]]

    return change


HEADERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "before the data": (_offsets(NORM, by=-1_000_000), f"{NORM} does not begin where the tensor before it ends"),
    "one over another": (_offsets(UP, by=-4), f"{UP} does not begin where the tensor before it ends"),
    "sides below zero": (lambda header: header[UP].update(shape=[-96, -64]), f"the bytes of {UP} are not those"),
    "half the numbers": (lambda header: header[UP].update(dtype="F16"), f"the bytes of {UP} are not those"),
    "bytes of no tensor": (lambda header: None, "4 bytes after its last tensor belong to none"),
    "brackets": (lambda header: None, "its header cannot be parsed"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_does_not_hold_together_is_refused(case: str, tmp_path: Path) -> None:
    change, message = HEADERS[case]
    save_decoder("llama 3", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    change(header)
    head = b"[" * 200_000 if case == "brackets" else json.dumps(header).encode()
    rest = content[8 + length :] + (b"rest" if case == "bytes of no tensor" else b"")
    path.write_bytes(struct.pack("<Q", len(head)) + head + rest)
    with pytest.raises(CheckpointError, match=message):
        from_hf(tmp_path / "model", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("files", "message"),
    [({}, "its weight_map is empty"), ({NORM: "../model-00001-of-00002.safetensors"}, f"it says that {NORM} is in")],
)
def test_an_index_names_files_of_its_folder(tmp_path: Path, files: dict[str, str], message: str) -> None:
    save_decoder("llama 3", tmp_path / "model", max_shard_size="200KB")
    path = tmp_path / "model" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index | {"weight_map": index["weight_map"] | files if files else {}}))
    with pytest.raises(CheckpointError, match=message):
        from_hf(tmp_path / "model", tmp_path / "out")


def test_a_model_that_cannot_be_read_is_not_blamed_on_the_place_of_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_decoder("llama 3", tmp_path / "model")
    read = tensor_files.safe_open

    class Broken:
        """What the system says of a file that is a folder, as of a disk that fails."""

        def __init__(self, path: Path, framework: str) -> None:
            self._path, self._file = path, read(path, framework=framework)

        def __enter__(self) -> "Broken":
            self._opened = self._file.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self._file.__exit__(*error)

        def keys(self) -> list[str]:
            return list(self._opened.keys())

        def get_slice(self, name: str) -> "Slice":
            return Slice(name, self._opened.get_slice(name))

    class Slice:
        def __init__(self, name: str, part: Any) -> None:
            self._name, self._part = name, part
            self.get_shape, self.get_dtype = part.get_shape, part.get_dtype

        def __getitem__(self, key: slice) -> torch.Tensor:
            if self._name == UP:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return self._part[key]

    monkeypatch.setattr(tensor_files, "safe_open", Broken)
    with pytest.raises(CheckpointError, match=rf"{UP} cannot be read: {os.strerror(errno.EIO)}"):
        from_hf(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()
