"""Shards: the bytes on disk, against a reader and a writer that share no code with ours."""

import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from toolkit.core.errors import CorpusError
from toolkit.data import Shard, ShardWriter, token_dtype

# Two documents, [7, 300, 65499] and [5], in 16 bits: the whole pair of files, by hand.
BIN_BYTES = bytes([7, 0, 0x2C, 0x01, 0xDB, 0xFF, 5, 0])
IDX_BYTES = (
    b"MMIDIDX\x00\x00"
    + struct.pack("<Q", 1)
    + bytes([8])
    + struct.pack("<QQ", 2, 3)
    + struct.pack("<ii", 3, 1)
    + struct.pack("<qq", 0, 6)
    + struct.pack("<qqq", 0, 1, 2)
)


def _read_as_megatron(prefix: Path) -> list[list[int]]:
    """The documents of a shard, read with struct alone."""
    index, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    magic, version, code, num_sequences, num_boundaries = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version, num_boundaries) == (b"MMIDIDX\x00\x00", 1, num_sequences + 1)
    letter, width = {8: ("H", 2), 4: ("i", 4)}[code]
    position = 34
    lengths = struct.unpack_from(f"<{num_sequences}i", index, position)
    position += 4 * num_sequences
    pointers = struct.unpack_from(f"<{num_sequences}q", index, position)
    position += 8 * num_sequences
    boundaries = struct.unpack_from(f"<{num_boundaries}q", index, position)
    assert position + 8 * num_boundaries == len(index)
    assert boundaries == tuple(range(num_boundaries))
    assert sum(lengths) * width == len(data)
    return [
        list(struct.unpack_from(f"<{length}{letter}", data, pointer))
        for length, pointer in zip(lengths, pointers, strict=True)
    ]


def _write_pair(folder: Path, index: bytes = IDX_BYTES, data: bytes = BIN_BYTES) -> Path:
    (folder / "s.idx").write_bytes(index)
    (folder / "s.bin").write_bytes(data)
    return folder / "s"


def test_two_documents_give_exactly_these_bytes(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s", dtype="uint16") as writer:
        writer.append(np.array([7, 300, 65499, 5], np.uint32), np.array([3, 1]))
        files = writer.close()
    assert (tmp_path / "s.bin").read_bytes() == BIN_BYTES
    assert (tmp_path / "s.idx").read_bytes() == IDX_BYTES
    assert (files.documents, files.tokens) == (2, 4)
    assert files.sha256_bin == hashlib.sha256(BIN_BYTES).hexdigest()
    assert files.sha256_idx == hashlib.sha256(IDX_BYTES).hexdigest()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.bin", "s.idx"]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_an_independent_reader_finds_the_documents(tmp_path: Path, dtype: str) -> None:
    documents = [[1, 2, 3], [], [65000], list(range(1000, 1400)), []]
    if dtype == "int32":
        documents.append([128_255, 0])
    with ShardWriter(tmp_path / "s", dtype=dtype) as writer:
        for some in (documents[:2], documents[2:]):
            flat = np.array([token for document in some for token in document], np.uint32)
            writer.append(flat, np.array([len(document) for document in some]))
    assert _read_as_megatron(tmp_path / "s") == documents
    shard = Shard(tmp_path / "s")
    assert [shard.document(index).tolist() for index in range(len(documents))] == documents
    assert shard.dtype == dtype
    assert (shard.num_documents, shard.num_tokens) == (len(documents), sum(map(len, documents)))


def test_arrays_are_plain_views_of_the_files(tmp_path: Path) -> None:
    shard = Shard(_write_pair(tmp_path))
    assert type(shard.tokens) is np.ndarray
    assert not shard.tokens.flags.owndata
    assert not shard.tokens.flags.writeable
    assert shard.lengths.tolist() == [3, 1]
    assert [shard.document(number).tolist() for number in range(2)] == [[7, 300, 65499], [5]]


def test_an_empty_shard_is_legal(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s", dtype="int32"):
        pass
    shard = Shard(tmp_path / "s")
    assert (shard.num_documents, shard.num_tokens, shard.tokens.size, shard.lengths.size) == (0, 0, 0, 0)


def test_sixteen_bits_below_65500_ids() -> None:
    assert [token_dtype(size) for size in (1, 65_499, 65_500, 128_256)] == ["uint16", "uint16", "int32", "int32"]


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with ShardWriter(tmp_path / "s", dtype="uint16") as writer:
            writer.append(np.array([1]), np.array([1]))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_nothing_has_the_final_name_before_the_end(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    writer.append(np.array([1]), np.array([1]))
    assert not (tmp_path / "s.bin").exists()
    writer.close()
    assert (tmp_path / "s.bin").exists()


def test_both_names_are_forced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest will name the shard; without its folder, a power cut may take the names back."""
    forced: list[tuple[str, list[str]]] = []

    def noted(descriptor: int) -> None:
        names = sorted(path.name for path in tmp_path.iterdir())
        forced.append((os.readlink(f"/proc/self/fd/{descriptor}"), names))

    monkeypatch.setattr(os, "fsync", noted)
    with ShardWriter(tmp_path / "a", dtype="uint16") as writer:
        writer.append(np.array([1]), np.array([1]))
    assert forced[-1] == (str(tmp_path), ["a.bin", "a.idx"])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere/s\.bin"):
        ShardWriter(tmp_path / "nowhere" / "s", dtype="uint16")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / ".s.bin.partial").symlink_to("/dev/full")
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    with pytest.raises(CorpusError, match=r"s\.bin cannot be written: No space left"):
        writer.append(np.zeros(100_000), np.array([100_000]))
    writer.abort()
    assert list(tmp_path.iterdir()) == []


DAMAGED_INDEXES = {
    "empty": b"",
    "short header": IDX_BYTES[:20],
    "truncated": IDX_BYTES[:-1],
    "too long": IDX_BYTES + b"\x00",
    "wrong magic": b"TNTIDX\x00\x00\x00" + IDX_BYTES[9:],
    "wrong version": IDX_BYTES[:9] + struct.pack("<Q", 2) + IDX_BYTES[17:],
    "unknown type": IDX_BYTES[:17] + bytes([9]) + IDX_BYTES[18:],
    "documents out of order": IDX_BYTES[:58] + struct.pack("<qqq", 0, 3, 2),
    "first document begins late": IDX_BYTES[:58] + struct.pack("<qqq", 1, 1, 2),
    "last document ends early": IDX_BYTES[:58] + struct.pack("<qqq", 0, 1, 1),
    "no boundaries": IDX_BYTES[:18] + struct.pack("<QQ", 2, 0) + IDX_BYTES[34:58],
    "count of documents": IDX_BYTES[:26] + struct.pack("<Q", 2) + IDX_BYTES[34:],
    "huge count": IDX_BYTES[:18] + struct.pack("<QQ", 2**60, 2**60 + 1) + IDX_BYTES[34:],
    "negative length": IDX_BYTES[:34] + struct.pack("<ii", 5, -1) + IDX_BYTES[42:],
    "pointer before its place": IDX_BYTES[:42] + struct.pack("<qq", 0, 2) + IDX_BYTES[58:],
    "pointer beyond the end": IDX_BYTES[:42] + struct.pack("<qq", 0, 2**40) + IDX_BYTES[58:],
}


@pytest.mark.parametrize("damage", DAMAGED_INDEXES)
def test_a_damaged_index_is_named(tmp_path: Path, damage: str) -> None:
    prefix = _write_pair(tmp_path, index=DAMAGED_INDEXES[damage])
    with pytest.raises(CorpusError, match=r"s\.idx is damaged"):
        _ = Shard(prefix).lengths


@pytest.mark.parametrize(("code", "name"), [(1, "uint8"), (2, "int8"), (3, "int16"), (5, "int64"), (6, "float64")])
def test_other_types_that_megatron_knows_are_refused_by_name(tmp_path: Path, code: int, name: str) -> None:
    prefix = _write_pair(tmp_path, index=IDX_BYTES[:17] + bytes([code]) + IDX_BYTES[18:])
    with pytest.raises(CorpusError, match=rf"s\.idx is of {name} tokens \(type code {code}\): only uint16"):
        Shard(prefix)


def test_a_multimodal_index_is_refused(tmp_path: Path) -> None:
    """One byte more for each sequence: its mode."""
    with pytest.raises(CorpusError, match=r"s\.idx has a mode for each sequence"):
        Shard(_write_pair(tmp_path, index=IDX_BYTES + bytes([0, 1])))


def _write_sentences(folder: Path, documents: list[list[list[int]]]) -> Path:
    """As Megatron-LM writes with `--split-sentences`: a sequence for each sentence, documents by boundaries."""
    sentences = [sentence for document in documents for sentence in document]
    lengths = [len(sentence) for sentence in sentences]
    boundaries = [0, *np.cumsum([len(document) for document in documents]).tolist()]
    pointers = [2 * sum(lengths[:number]) for number in range(len(lengths))]
    index = (
        struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, len(lengths), len(boundaries))
        + struct.pack(f"<{len(lengths)}i", *lengths)
        + struct.pack(f"<{len(lengths)}q", *pointers)
        + struct.pack(f"<{len(boundaries)}q", *boundaries)
    )
    tokens = [token for sentence in sentences for token in sentence]
    return _write_pair(folder, index=index, data=struct.pack(f"<{len(tokens)}H", *tokens))


def test_sentences_of_a_document_are_joined(tmp_path: Path) -> None:
    documents = [[[1, 2], [3]], [[4, 5, 6]], [], [[7], [], [8, 9]], []]
    shard = Shard(_write_sentences(tmp_path, documents))
    joined = [[1, 2, 3], [4, 5, 6], [], [7, 8, 9], []]
    assert (shard.num_documents, shard.num_tokens) == (5, 9)
    assert [shard.document(number).tolist() for number in range(5)] == joined
    assert shard.lengths.size == 5
    assert shard.lengths[:].tolist() == [3, 3, 0, 3, 0]
    assert shard.lengths[1:4].tolist() == [3, 0, 3]
    assert shard.lengths[4:9].tolist() == [0]


def test_as_many_documents_as_sequences_may_still_be_others(tmp_path: Path) -> None:
    shard = Shard(_write_sentences(tmp_path, [[], [[1, 2], [3]]]))
    assert [shard.document(number).tolist() for number in range(2)] == [[], [1, 2, 3]]
    assert shard.lengths[:].tolist() == [0, 3]


@pytest.mark.parametrize("boundaries", [[], [[]], [[], []]])
def test_documents_without_a_single_sequence(tmp_path: Path, boundaries: list[list[list[int]]]) -> None:
    shard = Shard(_write_sentences(tmp_path, boundaries))
    assert (shard.num_documents, shard.num_tokens) == (len(boundaries), 0)
    assert shard.lengths[:].tolist() == [0] * len(boundaries)


@pytest.mark.parametrize(
    "data", [BIN_BYTES[:-2], BIN_BYTES[:-1], BIN_BYTES + b"\x00\x00"], ids=["shorter", "half a token", "longer"]
)
def test_tokens_of_the_wrong_size_are_named(tmp_path: Path, data: bytes) -> None:
    prefix = _write_pair(tmp_path, data=data)
    with pytest.raises(CorpusError, match=r"s\.bin is damaged"):
        _ = Shard(prefix).lengths


@pytest.mark.parametrize("ending", ["bin", "idx"])
def test_a_missing_file_is_named(tmp_path: Path, ending: str) -> None:
    prefix = _write_pair(tmp_path)
    (tmp_path / f"s.{ending}").unlink()
    with pytest.raises(CorpusError, match=rf"s\.{ending} cannot be read: No such file"):
        Shard(prefix)
