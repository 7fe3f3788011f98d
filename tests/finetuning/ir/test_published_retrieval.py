"""Retrieval sets in their published form; skipped where they are not there."""

from pathlib import Path
from runpy import run_path

import pytest

from tests.support.sources import ROOT
from toolkit.finetuning import Split
from toolkit.finetuning.ir.task import Retrieval, RetrievalSettings

SETS = Path(__file__).resolve().parents[4] / "shared" / "data" / "eval" / "ir"
CONVERT = run_path(str(ROOT / "docs/examples/smart-collections/smart_to_beir.py"))["convert"]
SPLITS = (Split.TRAIN, Split.TEST)

pytestmark = pytest.mark.skipif(not SETS.exists(), reason="needs the shared evaluation sets")


@pytest.mark.parametrize(
    ("train", "test", "counts"),
    [
        # Queries and judgements of training and test, grades of test, documents searched.
        ("scifact", "scifact", (809, 919, 300, 339, {1}, 5183)),
        ("scifact", "msmarco-sample", (809, 919, 43, 4102, {1, 2, 3}, 5000)),
        ("scifact", "cranfield", (809, 919, 225, 1612, {1, 2, 3, 4}, 1398)),
        ("cranfield", "cranfield", (180, 1199, 45, 413, {1, 2, 3, 4}, 1398)),
    ],
)
def test_they_are_read_whole(tmp_path, train, test, counts):
    splits = ["train", "test"] if train == "cranfield" else ["test"]
    CONVERT(SETS / "cranfield", tmp_path / "cranfield", splits)
    files = {
        split: (tmp_path if name == "cranfield" else SETS) / name
        for split, name in zip(SPLITS, (train, test), strict=True)
    }
    data = Retrieval(RetrievalSettings()).read(files)
    grades = [data.judgements[split].grades for split in SPLITS]
    sizes = [size for part in grades for size in (len(part), sum(map(len, part.values())))]
    kinds = {grade for of_query in grades[1].values() for grade in of_query.values()}
    assert (*sizes, kinds, len(data.searched[Split.TEST])) == counts
