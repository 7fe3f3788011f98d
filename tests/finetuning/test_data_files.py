"""What can be wrong with a data file, in every reader."""

import re

import pytest

from toolkit.core.errors import UserError
from toolkit.finetuning.bad_rows import BadRows
from toolkit.finetuning.ir import beir
from toolkit.finetuning.ir.beir import Collection
from toolkit.finetuning.qa.squad import read_questions
from toolkit.finetuning.tc.conll import read_tagged
from toolkit.tables import parse_object, read_table

NOTHING = Collection(None, None, {}, {})
READERS = {
    "rows.tsv": read_table,
    "rows.jsonl": read_table,
    "rows.parquet": read_table,
    "dev.json": lambda path: read_questions(path, BadRows()),
    "eng.train": lambda path: read_tagged(path, BadRows()),
    "test.tsv": lambda path: beir.read_judgements(path, NOTHING, BadRows()),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, name):
    path = tmp_path / name
    with pytest.raises(UserError, match=rf"{name}: no such file\. Give "):
        READERS[name](path)
    path.mkdir()
    with pytest.raises(UserError, match=rf"{name}: is a directory\. Give "):
        READERS[name](path)
    path.rmdir()
    path.write_bytes(b"a\xff")
    if name != "rows.parquet":
        with pytest.raises(UserError, match=rf"{name}: not valid UTF-8 at byte 1\. Save it as UTF-8\."):
            READERS[name](path)

    def fail(*_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.open", fail)
    with pytest.raises(UserError, match=rf"could not read {re.escape(str(path))}: Permission denied\."):
        READERS[name](path)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("1" * 5000, r"Exceeds the limit"),
        ("[" * 100_000, "nested too deep"),
        (r'"a\uD83D b"', "surrogates not allowed"),
    ],
)
def test_json_that_python_cannot_hold_is_named(tmp_path, value, reason):
    """Numbers of thousands of digits, and halves of pairs, which no tokenizer takes."""
    for name, read in (("rows.jsonl", read_table), ("dev.json", READERS["dev.json"])):
        path = tmp_path / name
        path.write_text(f'{{"text": {value}' + "}\n")
        with pytest.raises(UserError, match=rf"{name}.*: could not be read: .*{reason}.*Correct"):
            read(path)


def test_a_pair_of_surrogates_is_a_character():
    assert parse_object("f, line 1", r'{"a": "\ud83d\ude00"}') == {"a": "😀"}
