"""The sequence classification sets of the shared folder, in the form in which they are published."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.hf_encoders import save_encoder
from toolkit.finetuning import Split, get_task, open_source, prepare
from toolkit.finetuning.sc.examples import paper_text

SETS = Path(__file__).resolve().parents[4] / "shared" / "data" / "eval" / "sc"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not SETS.exists(), reason="needs the shared evaluation sets"),
]

MRPC = {"text_columns": ("#1 String", "#2 String"), "label_column": "Quality"}
MNLI = {"text_columns": ("premise", "hypothesis")}


@pytest.mark.parametrize("protocol", ["standard", "paper"])
@pytest.mark.parametrize(
    ("train", "test", "options", "sizes", "names", "first"),
    [
        ("sst2/train.tsv", "sst2/dev.tsv", {"text_columns": ("sentence",)}, (67349, 872), ["0", "1"], None),
        ("mrpc/msr_paraphrase_train.txt", "mrpc/msr_paraphrase_test.txt", MRPC, (4076, 1725), ["0", "1"],
         "#1 string: PCCW's chief operating officer,"),
        ("mnli-sample/train.tsv", "mnli-sample/validation.tsv", MNLI, (10000, 10000),
         ["contradiction", "entailment", "neutral"], "Premise: "),
    ],
    ids=["sst2", "mrpc", "mnli"],
)  # fmt: skip
def test_a_published_set_is_read_whole(tmp_path, protocol, train, test, options, sizes, names, first):
    family = get_task("sc")
    task = family(family.Settings(protocol=protocol, **options))
    files = {Split.TRAIN: SETS / train, Split.TEST: SETS / test}
    data = task.read(files)
    assert [*data.labels.classes.labels] == names
    assert sum(len(data.examples[split]) for split in data.examples if split is not Split.TEST) == sizes[0]
    assert len(data.examples[Split.TEST]) == sizes[1]
    small = {split: rows[:4] for split, rows in data.examples.items()}
    source = open_source(str(save_encoder("eurobert", tmp_path / "model")))
    prepared = prepare(task, files, replace(data, examples=small), source)
    assert all(len(rows) == 4 for rows in prepared.features.values())
    if protocol == "paper" and first:
        example = data.examples[Split.TEST][0]
        assert paper_text(example.text, example.text_pair, task.pair_labels(data)).startswith(first)
    if protocol == "paper":
        assert len(data.examples[Split.VALIDATION]) == sizes[0] - int(sizes[0] * 0.95)
