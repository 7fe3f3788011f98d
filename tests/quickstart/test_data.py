"""What travels with the package is whole, fits together and is attributed."""

import re
from pathlib import Path

import pyarrow.parquet as pq
from transformers import AutoTokenizer

import toolkit
from toolkit.tables import read_table

DATA = Path(toolkit.__file__).parent / "quickstart"


def articles(name):
    return pq.read_table(DATA / f"wikipedia-{name}.parquet").to_pylist()


def test_text_has_the_promised_size_and_no_article_in_both_parts():
    train, validation = articles("train"), articles("validation")
    assert (len(train), len(validation)) == (4020, 180)
    assert sum(len(article["text"].encode()) for article in train) == 10_001_708
    assert not {article["id"] for article in train} & {article["id"] for article in validation}
    assert not {article["text"] for article in train} & {article["text"] for article in validation}
    assert 2e6 < (DATA / "wikipedia-train.parquet").stat().st_size < 4e6


def test_the_tokenizer_names_its_specials_and_loses_nothing():
    tokenizer = AutoTokenizer.from_pretrained(DATA / "tokenizer")
    assert len(tokenizer) == 8192
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 1, 2)
    texts = [article["text"] for article in articles("validation")]
    ids = tokenizer(texts).input_ids
    assert tokenizer.batch_decode(ids) == texts
    # Text that the vocabulary was not learnt from: between three and a half and four bytes a token.
    assert 3.4 < sum(len(text.encode()) for text in texts) / sum(map(len, ids)) < 4.0


def test_the_labelled_set_is_disjoint_and_of_two_classes():
    tables = {name: read_table(DATA / "entity" / f"{name}.tsv").rows for name in ("train", "validation", "test")}
    assert {name: len(rows) for name, rows in tables.items()} == {"train": 300, "validation": 200, "test": 1417}
    assert all({row["label"] for row in rows} == {"entity", "none"} for rows in tables.values())
    texts = {name: {row["text"] for row in rows} for name, rows in tables.items()}
    assert not texts["train"] & texts["validation"]
    assert not (texts["train"] | texts["validation"]) & texts["test"]
    assert sum(row["label"] == "entity" for row in tables["test"]) == 524


def test_every_file_is_attributed():
    table = (DATA / "ATTRIBUTION.md").read_text("utf-8")
    named = set(re.findall(r"`([\w./-]+)`", "".join(line for line in table.splitlines() if line.startswith("|"))))
    present = {
        path.relative_to(DATA).as_posix() for path in DATA.rglob("*") if path.is_file() and ".py" not in path.suffix
    }
    unnamed = {path for path in present if path not in named and f"{path.split('/')[0]}/" not in named}
    assert unnamed == set()
