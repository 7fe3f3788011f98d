"""Files damaged at random places: every reader gives rows or one error that names the file, in bounded time.

Parquet is read in a process of its own: what goes wrong in Arrow can end it, and that would be a finding, too.
"""

import gzip
import io
import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.apart import run_apart
from tests.support.mutations import mutated
from tests.support.reading import rows_of, zstd
from tests.support.sources import ROOT
from tests.support.text import sample_documents
from toolkit.core.errors import UserError
from toolkit.preprocess.readers import parquet

CASES = 1000
TEXTS = [*sample_documents(80), "", "café — “red” 🙂\tx\\"]
LINES = b"".join(
    json.dumps({"id": number, "text": text}, ensure_ascii=number % 2 == 0).encode() + b"\n"
    for number, text in enumerate(TEXTS)
)
ARRAY = json.dumps(
    [{"text": text, "more": [1.5, {"a": None}]} for text in TEXTS], ensure_ascii=False, indent=1
).encode()


def table(**options):
    file = io.BytesIO()
    pq.write_table(pa.table({"id": range(len(TEXTS)), "text": TEXTS, "list": [[1, 2]] * len(TEXTS)}), file, **options)
    return file.getvalue()


UNDAMAGED = {
    "jsonl": {"a.jsonl": LINES, "b.json": LINES, "c.txt": LINES},
    "array": {"a.json": ARRAY},
    "gzip": {
        "a.jsonl.gz": gzip.compress(LINES[:9000]) + gzip.compress(LINES[9000:]),
        "b.json.gz": gzip.compress(ARRAY),
    },
    "zstd": {"a.jsonl.zst": zstd(LINES[:9000]) + zstd(LINES[9000:]), "b.json.zst": zstd(ARRAY)},
    "parquet": {
        "a.parquet": table(row_group_size=30),
        "b.parquet": table(compression="none", use_dictionary=False, write_page_checksum=True),
        "c.parquet": table(compression="zstd", data_page_version="2.0", write_page_index=True),
        "d.parquet": table(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}, store_schema=False),
    },
}


def damaged(content, generator):
    """Damage anywhere, or in the first three quarters alone with all that follows in its place, as Parquet needs it."""
    if generator.random() < 0.5:
        return mutated(content, generator)
    size = len(content) * 3 // 4
    return mutated(content[:size], generator)[:size].ljust(size, b"\0") + content[size:]


def outcome(path, *, txt_documents):
    """Number of rows, or the message of the error."""
    try:
        return len(rows_of(path, txt_documents=txt_documents))
    except UserError as error:
        message = str(error)
    assert str(path) in message
    return message


def damage_many(kind, folder, *, seed=0):
    """How many damaged files of a kind gave rows, and how many an error."""
    counts = {int: 0, str: 0}
    for number in range(CASES):
        generator = np.random.default_rng((seed, number))
        name, content = list(UNDAMAGED[kind].items())[generator.integers(len(UNDAMAGED[kind]))]
        path = Path(folder, name)
        path.write_bytes(damaged(content, generator))
        begin = time.process_time()
        with pytest.MonkeyPatch.context() as patch:
            # Stream row groups, or read them whole.
            patch.setattr(parquet, "_MOST_GROUP_BYTES", int(generator.choice([0, 8 << 20])))
            counts[type(outcome(path, txt_documents=str(generator.choice(["file", "paragraph", "line"]))))] += 1
        # A damaged size can make Arrow ask for 2 GB, which takes a second or two.
        assert time.process_time() - begin < 10, number
    return counts[int], counts[str]


@pytest.mark.parametrize("kind", ["jsonl", "array", "gzip", "zstd"])
def test_damaged_files_give_rows_or_an_error(tmp_path, kind):
    rows, errors = damage_many(kind, tmp_path)

    assert rows + errors == CASES
    assert (errors == 0) if kind == "jsonl" else (errors > 300)


def in_a_process(code, *words):
    code = f"import sys; from tests.preprocess import test_preprocess_damage as damage\n{code}"
    return run_apart("-X", "faulthandler", "-c", code, *words, folder=ROOT)


def test_damaged_parquet_gives_rows_or_an_error(tmp_path):
    finished = in_a_process("print(*damage.damage_many('parquet', sys.argv[1]))", tmp_path)

    assert finished.returncode == 0, finished.stderr[-2000:]
    rows, errors = map(int, finished.stdout.split())
    assert rows > 20
    assert errors > 300


def damage_footer(folder, first):
    """Every byte of a footer from one on changed in two ways; prints the number of each before it is read."""
    content = UNDAMAGED["parquet"]["b.parquet"]
    length = int.from_bytes(content[-8:-4], "little")
    path = Path(folder, "a.parquet")
    for number in range(first, 2 * (length + 8)):
        print(number, flush=True)
        place, change = len(content) - length - 8 + number // 2, (0x01, 0x10)[number % 2]
        path.write_bytes(content[:place] + bytes([content[place] ^ change]) + content[place + 1 :])
        outcome(path, txt_documents="file")
    print(2 * (length + 8))


def test_a_damaged_footer_gives_an_error_or_ends_the_process_with_the_file_named(tmp_path):
    first, num_ended = 0, 0
    while (finished := in_a_process("damage.damage_footer(sys.argv[1], int(sys.argv[2]))", tmp_path, first)).returncode:
        assert f'File "{tmp_path / "a.parquet"}", line' in finished.stderr
        first, num_ended = int(finished.stdout.split()[-1]) + 1, num_ended + 1

    assert int(finished.stdout.split()[-1]) > 1000
    assert num_ended < 10


@pytest.mark.parametrize("kind", UNDAMAGED)
def test_what_is_damaged_here_is_whole_without(tmp_path, kind):
    for name, content in UNDAMAGED[kind].items():
        (tmp_path / name).write_bytes(content)
        assert outcome(tmp_path / name, txt_documents="line") == len(TEXTS)
