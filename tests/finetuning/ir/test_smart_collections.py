"""The converter from SMART's format to a BEIR folder, and what the fine-tuning reads of it."""

import subprocess
import sys
from runpy import run_path

import pytest

from tests.support.sources import ROOT
from toolkit.finetuning.bad_rows import BadRows
from toolkit.finetuning.ir import beir
from toolkit.finetuning.ir.beir import Document

SCRIPT = ROOT / "docs/examples/smart-collections/smart_to_beir.py"
convert = run_path(str(SCRIPT))["convert"]
DOCUMENTS = """.I 1
.T
a wing in
a slipstream .
.A
brenckman,m.
.W
a wing in a slipstream .
  an experimental study
.I 2
.T
.W
.I 4
.T
heat
.W
conduction
.W
in slabs
"""
QUERIES = ".I 001\n.W\nwhat of\nwings\n.I 004\n.W\nheat .\n"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "cran"
    folder.mkdir()
    (folder / "cran.all.1400").write_text(DOCUMENTS)
    (folder / "cran.qry").write_text(QUERIES)
    (folder / "cranqrel").write_text("1 1 1 \n1 4 4\n1 2 -1\n2 4 5\n2 1 3\n")
    (folder / "cranqrel.readme").write_text("codes\n")
    return folder


def read(path, split="test"):
    file = beir.judgements_file(path, split=split)
    bad = BadRows()
    return beir.read_judgements(file, beir.read_collection(file, bad), bad)


def test_cranfield(folder, tmp_path):
    convert(folder, tmp_path / "beir")
    judged = read(tmp_path / "beir")
    assert judged.collection.documents == {
        "1": Document("a wing in a slipstream .", "an experimental study"),
        "2": Document("", ""),
        "4": Document("heat", "conduction in slabs"),
    }
    assert judged.collection.queries == {"1": "what of wings", "2": "heat ."}  # Numbered by position, not by .I.
    assert judged.grades == {"1": {"1": 4, "4": 1}, "2": {"4": 0, "1": 2}}  # -1 is no judgement.


@pytest.mark.parametrize(
    ("lines", "grades"),
    [
        ("     1     1\t0\t0.000000\n     1     4\t0\t0.000000\n", {"1": {"1": 1, "4": 1}}),  # CISI.
        ("1 0 4 1\n2 0 1 0\n", {"1": {"4": 1}, "2": {"1": 0}}),  # TREC.
        ("2 4\n", {"2": {"4": 1}}),
    ],
)
def test_other_columns(folder, tmp_path, lines, grades):
    (folder / "cranqrel").write_text(lines)
    convert(folder, tmp_path / "beir")
    assert read(tmp_path / "beir").grades == grades


def test_queries_are_dealt_in_order(folder, tmp_path):
    (folder / "cran.qry").write_text("".join(f".I {3 * n}\n.W\nw{n}\n" for n in range(1, 31)))
    (folder / "cranqrel").write_text("".join(f"{n} 1 2\n{n} 4 -1\n" for n in range(1, 31)))
    words = [str(folder), str(tmp_path / "beir"), "--splits", "train", "dev", "test"]
    subprocess.run([sys.executable, str(SCRIPT), *words], check=True)
    dealt = {split: list(read(tmp_path / "beir", split).grades) for split in ("train", "dev", "test")}
    assert {split: (int(part[0]), int(part[-1])) for split, part in dealt.items()} == {
        "train": (1, 18),
        "dev": (19, 24),
        "test": (25, 30),
    }


def test_a_second_file_of_judgements_is_named(folder, tmp_path):
    (folder / "second.rel").write_text("1 1\n")
    with pytest.raises(SystemExit, match=r"expected one file .* found \['cranqrel', 'second.rel'\]"):
        convert(folder, tmp_path / "beir")
