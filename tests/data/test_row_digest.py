"""The digest, against a loop written from its definition, and the stream of rows it is taken over."""

import hashlib
import struct
from pathlib import Path

import numpy as np

from toolkit.data import (
    DIGEST_START,
    Corpus,
    DataSettings,
    Order,
    Rows,
    RowStream,
    advance_digest,
    open_rows,
    row_hashes,
)
from toolkit.testing.corpora import random_documents, write_token_corpus


def _digests_by_definition(steps: list[tuple[list[list[int]], list[list[int]]]]) -> list[str]:
    digest, found = b"\x00" * 16, []
    for tokens, segments in steps:
        message = digest
        for tokens_S, segments_S in zip(tokens, segments, strict=True):
            row = b"".join(struct.pack("<i", value) for value in [*tokens_S, *segments_S])
            message += hashlib.blake2b(row, digest_size=8).digest()
        digest = hashlib.blake2b(message, digest_size=16).digest()
        found.append(digest.hex())
    return found


def _rows(folder: Path, *, seed: int = 0) -> Rows:
    if not folder.joinpath("corpus.json").exists():
        write_token_corpus(folder, random_documents(300, vocabulary_size=70_000), vocabulary_size=70_000, shards=2)
    return open_rows(Corpus(folder), DataSettings(train=str(folder), sequence_length=32), seed=seed)


def _stream(folder: Path, *, seed: int = 0) -> RowStream:
    rows = _rows(folder, seed=seed)
    return RowStream(rows, Order(rows.num_rows, seed=seed, shuffle="global"))


def _digests(stream: RowStream, num_steps: int, *, step_rows: int = 8, ranks: int = 1) -> list[str]:
    digest, found = DIGEST_START, []
    for step in range(num_steps):
        positions_G = np.arange(step * step_rows, (step + 1) * step_rows)
        parts = [stream.at(part) for part in np.split(positions_G, ranks)]
        digest = advance_digest(digest, np.concatenate([row_hashes(p.tokens_BS, p.segments_BS) for p in parts]))
        found.append(digest.hex())
    return found


def test_it_is_what_the_definition_says(tmp_path: Path) -> None:
    stream = _stream(tmp_path)
    steps = [stream.at(np.arange(step * 8, step * 8 + 8)) for step in range(5)]
    expected = _digests_by_definition([(some.tokens_BS.tolist(), some.segments_BS.tolist()) for some in steps])
    assert _digests(stream, 5) == expected


def test_it_does_not_depend_on_how_a_step_is_divided(tmp_path: Path) -> None:
    stream = _stream(tmp_path)
    assert _digests(stream, 3, ranks=1) == _digests(stream, 3, ranks=4)


def test_other_data_gives_another(tmp_path: Path) -> None:
    first, second = _digests(_stream(tmp_path), 2), _digests(_stream(tmp_path, seed=1), 2)
    assert not set(first) & set(second)


def test_tokens_segments_and_order_all_count() -> None:
    tokens_BS, segments_BS = np.arange(8).reshape(2, 4), np.ones((2, 4), np.int64)
    base = row_hashes(tokens_BS, segments_BS)
    assert base.shape == (2, 8)
    assert base.dtype == np.uint8
    for changed in (row_hashes(tokens_BS + 1, segments_BS), row_hashes(tokens_BS, segments_BS + 1)):
        assert not (changed == base).all(axis=1).any()
    assert advance_digest(DIGEST_START, base) != advance_digest(DIGEST_START, base[::-1])
    assert advance_digest(DIGEST_START, base) != advance_digest(bytes([1]) + bytes(15), base)


def test_the_width_of_the_integers_does_not_matter() -> None:
    tokens_BS = np.arange(8).reshape(2, 4)
    for dtype in (np.int32, np.int64, np.uint16):
        np.testing.assert_array_equal(
            row_hashes(tokens_BS.astype(dtype), tokens_BS.astype(dtype)), row_hashes(tokens_BS, tokens_BS)
        )


def test_a_stream_has_no_state(tmp_path: Path) -> None:
    stream = _stream(tmp_path)
    later = stream.at(np.arange(100, 108))
    stream.at(np.arange(50))
    np.testing.assert_array_equal(stream.at(np.arange(100, 108)).tokens_BS, later.tokens_BS)
    rows = _rows(tmp_path)
    epoch = stream.at(np.arange(rows.num_rows, 2 * rows.num_rows))
    assert (epoch.segments_BS > 0).sum() == rows.num_tokens
