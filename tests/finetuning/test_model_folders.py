"""What is served is what was trained: each `model/` in others' tools, by family and task."""

import json
import os
import random
import subprocess
import sys

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModel

from tests.support.hf_encoders import WORDS, save_encoder
from tests.support.old_readers import check_by_old_rules
from tests.support.retrieval import word_collection
from tests.support.stock_readers import READERS
from toolkit.conversion import from_hf, to_hf
from toolkit.finetuning import get_task, load_classifier
from toolkit.workflows.finetune import finetune

FAMILIES = ("eurobert", "modernbert", "qwen3", "bert")
OLD = (
    "transformers==4.57.*",
    "tokenizers==0.22.*",
    "huggingface_hub<1",
    "sentence-transformers==5.1.*",
    "datasets==4.1.*",
)


def sentences(count, *, seed=0, words=WORDS):
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(2, 9))) for _ in range(count)]


def texts(folder):
    """Pairs with the label of the half of the vocabulary that the second text is from."""
    path, halves = folder / "rows.jsonl", (WORDS[:20], WORDS[20:])
    second = [sentences(40, seed=seed, words=half) for seed, half in enumerate(halves)]
    rows = [{"text": one, "text_pair": second[number % 2][number]} for number, one in enumerate(sentences(40))]
    labelled = [{**row, "label": ("low", "high")[number % 2]} for number, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in labelled))
    return path, rows, lambda row: row["prediction"]


def words(folder):
    rows, path = sentences(24), folder / "rows.conll"
    tagged = [[f"{word} {'B-X' if word in WORDS[:20] else 'O'}\n" for word in row.split()] for row in rows]
    path.write_text("\n".join(map("".join, tagged)))
    return path, rows, lambda row: row["prediction"]


def questions(folder):
    around = zip(sentences(24), sentences(24, seed=1, words=WORDS[:10]), strict=True)
    rows = [("w30", f"{text} w5 w1 {other}") for text, other in around]

    def answer(text):
        begin = text.index("w5 w1")
        return {"text": " ".join(text[begin:].split()[:3]), "answer_start": begin}

    asked = [{"id": f"{number}", "question": one, "answers": [answer(text)]} for number, (one, text) in enumerate(rows)]
    data = [{"paragraphs": [{"context": row[1], "qas": [one]}]} for row, one in zip(rows, asked, strict=True)]
    (folder / "rows.json").write_text(json.dumps({"data": data}))
    return folder / "rows.json", rows, lambda row: row["prediction"]


def collection(folder):
    path = word_collection(folder / "words")
    lines = [(path / name).read_text().splitlines() for name in ("queries.jsonl", "corpus.jsonl")]
    asked, searched = ([json.loads(line)["text"] for line in some] for some in lines)
    return path, (asked[60:], searched), lambda row: [int(name[1:]) for name in row["ranking"][:10]]


DATA = {"sc": texts, "tc": words, "qa": questions, "ir": collection}


def trained(task, family, folder):
    """A fine-tuned folder, the inputs of its test rows, and the answers to them in predictions.jsonl."""
    folder.mkdir(exist_ok=True)
    path, inputs, answer = DATA[task](folder)
    settings = get_task(task).Settings(learning_rate=1e-2, seed=3, steps=40, batch_rows=8)
    model = save_encoder(family, folder / family)
    finetune(task, model, output=folder / "out", settings=settings, train=path, test=path)
    rows = [json.loads(line) for line in (folder / "out/predictions.jsonl").read_text().splitlines()]
    return folder / "out/model", inputs, [answer(row) for row in rows]


def check_card(model, family, task):
    """The card names the pipeline that answers, has the scores, and its example runs."""
    text = (model / "README.md").read_text()
    result = json.loads((model.parent / "result.json").read_text())
    names = {"sc": "text-", "tc": "token-", "qa": "question-answering", "ir": "sentence-similarity"}
    has_head_beside = task == "sc" and family in ("qwen3", "bert")
    assert ModelCard(text).data.pipeline_tag.startswith("feature-" if has_head_beside else names[task])
    assert f"| test | {result['test'][result['metric']]:.4f} |" in text
    title = f"{family}-{result['dataset']}"
    assert f"# {title}\n" in text
    exec(text.split("```python\n")[1].split("```")[0].replace(f"'{title}'", repr(str(model))), {})


def check_comes_back(model, out):
    """What we wrote is read: the encoder is the same, with a new head to go on with."""
    from_hf(model, out, head="new")
    to_hf(out, out.with_name("again"))
    encoders = [AutoModel.from_pretrained(folder).eval() for folder in (model, out.with_name("again"))]
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        before, after = (encoder(input_ids=ids).last_hidden_state for encoder in encoders)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)


@pytest.mark.parametrize("task", DATA)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_gives_the_answers_of_its_predictions(tmp_path, family, task):
    model, inputs, expected = trained(task, family, tmp_path)
    assert len({json.dumps(answer) for answer in expected}) > 1
    check_by_old_rules(model)
    check_card(model, family, task)
    if family != "bert":
        check_comes_back(model, tmp_path / "imported")
    if task != "sc" or family in ("eurobert", "modernbert"):
        assert READERS[task](str(model), inputs) == expected
        return
    # No stock class has this head; one with a random head is not to answer under the labels' names.
    assert {"id2label", "label2id", "problem_type"}.isdisjoint(json.loads((model / "config.json").read_text()))
    assert load_classifier(str(model))(*([row[key] for row in inputs] for key in ("text", "text_pair"))) == expected


def test_a_classifier_that_was_one_before_keeps_none_of_its_names(tmp_path):
    model = save_encoder("bert", tmp_path / "bert")
    config = json.loads((model / "config.json").read_text())
    names = {"id2label": {"0": "x", "1": "y"}, "label2id": {"x": 0, "y": 1}, "problem_type": "regression"}
    (model / "config.json").write_text(json.dumps(config | names))
    path, _, _ = texts(tmp_path)
    settings = get_task("sc").Settings(steps=1, batch_rows=4)
    finetune("sc", model, output=tmp_path / "out", settings=settings, train=path, test=path)
    assert names.keys().isdisjoint(json.loads((tmp_path / "out/model/config.json").read_text()))


@pytest.mark.long
def test_transformers_4_gives_the_same_answers(tmp_path):
    """Of the classes that it has: it knows no EuroBERT, and no decoder that looks ahead."""
    old = tmp_path / "old"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(old), *OLD]
    subprocess.run(pip, check=True)
    made = {
        (task, family): trained(task, family, tmp_path / f"{task}-{family}")
        for task in DATA
        for family in ("modernbert", "bert")
        if (task, family) != ("sc", "bert")
    }
    jobs = [(task, str(model), inputs) for (task, _), (model, inputs, _) in made.items()]
    path = os.pathsep.join([str(old), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()])
    command = [sys.executable, "-m", "tests.support.stock_readers", str(tmp_path / "answers.json")]
    subprocess.run(command, input=json.dumps(jobs), text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert dict(zip(made, answers, strict=True)) == {key: expected for key, (_, _, expected) in made.items()}
