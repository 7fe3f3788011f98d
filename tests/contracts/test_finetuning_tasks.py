"""The contract of fine-tuning tasks, by family of the model.

What is served is what was trained: each `model/` answers in others' tools as `predictions.jsonl` has it, and scores are
those of other libraries. A run follows from its seed.
"""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from seqeval.metrics import f1_score
from sklearn import metrics
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tests.support.hf_encoders import WORDS, plain_tokenizer, save_encoder
from tests.support.old_readers import check_by_old_rules
from tests.support.retrieval import word_collection
from tests.support.stock_readers import READERS
from tests.support.text import read_lines, write_lines
from toolkit.conversion import from_hf, to_hf
from toolkit.core.errors import NonFiniteError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Initialization, Split, get_task, load_classifier, open_source, trainer

FAMILIES = ("eurobert", "modernbert", "ultrabert", "qwen3", "bert", "roberta")
STOCK_CLASSIFIERS = ("eurobert", "modernbert", "ultrabert")
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
    write_lines(path, labelled)
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
LEARNT = {"sc": 0.9, "tc": 0.9, "qa": 0.3, "ir": 0.1}
"""Scores that no model reaches by chance."""


def quick(task, **settings):
    return get_task(task).Settings(**{"learning_rate": 1e-3, "steps": 3, "batch_rows": 4, "seed": 3} | settings)


def trained(task, family, folder):
    """A fine-tuned folder, the inputs of its test rows, and the answers to them in predictions.jsonl."""
    folder.mkdir(exist_ok=True)
    path, inputs, answer = DATA[task](folder)
    model = save_encoder(family, folder / family)
    settings = quick(task, learning_rate=1e-2, steps=40, batch_rows=8)
    finetune(task, model, output=folder / "out", settings=settings, train=path, test=path)
    return folder / "out/model", inputs, [answer(row) for row in read_lines(folder / "out/predictions.jsonl")]


def expected_scores(task, rows, path):
    """Some of the scores, by other libraries or by hand, of the rows of predictions.jsonl for a test file."""
    found = [row.get("prediction") for row in rows]
    if task == "sc":
        labels = [row["label"] for row in rows]
        f1 = metrics.f1_score(labels, found, average="macro")
        mcc = metrics.matthews_corrcoef(labels, found)
        return {"accuracy": metrics.accuracy_score(labels, found), "f1_macro": f1, "mcc": mcc}
    if task == "tc":
        sentences = path.read_text().strip().split("\n\n")
        return {"f1": f1_score([[line.split()[-1] for line in one.splitlines()] for one in sentences], found)}
    if task == "qa":
        asked = [one["paragraphs"][0]["qas"][0] for one in json.loads(path.read_text())["data"]]
        assert [row["id"] for row in rows] == [one["id"] for one in asked]
        hits = [one["answers"][0]["text"] == text for one, text in zip(asked, found, strict=True)]
        return {"exact_match": np.mean(hits)}
    right = [row["id"].replace("q", "d") for row in rows]
    ranks = [[*row["ranking"], one].index(one) + 1 for one, row in zip(right, rows, strict=True)]
    return {
        "mrr@10": np.mean([1 / rank if rank <= 10 else 0.0 for rank in ranks]),
        "recall@100": np.mean([rank <= 100 for rank in ranks]),
    }


def check_card(model, family, task):
    """The card names the pipeline that answers, has the scores, and its example runs."""
    text = (model / "README.md").read_text()
    result = json.loads((model.parent / "result.json").read_text())
    names = {"sc": "text-", "tc": "token-", "qa": "question-answering", "ir": "sentence-similarity"}
    has_head_beside = task == "sc" and family not in STOCK_CLASSIFIERS
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
    written = json.loads((tmp_path / "out/result.json").read_text())
    fields = {name: written[name] for name in ("task", "metric", "seed", "learning_rate", "steps", "model")}
    assert fields == {
        "task": task, "metric": get_task(task).metrics["standard"], "seed": 3, "learning_rate": 1e-2, "steps": 40,
        "model": str(tmp_path / family),
    }  # fmt: skip
    assert written["test"][written["metric"]] >= LEARNT[task]
    rows = read_lines(tmp_path / "out/predictions.jsonl")
    of_library = expected_scores(task, rows, next(tmp_path.glob("rows.*"), None))
    assert {name: written["test"][name] for name in of_library} == pytest.approx(of_library, abs=1e-12)
    if family not in ("bert", "roberta"):
        check_comes_back(model, tmp_path / "imported")
    if task != "sc" or family in STOCK_CLASSIFIERS:
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


@pytest.mark.parametrize("task", DATA)
def test_a_run_follows_from_its_seed_and_a_random_twin_takes_the_shape_alone(tmp_path, task):
    path, _, _ = DATA[task](tmp_path)
    model, weights = save_encoder("eurobert", tmp_path / "model"), []
    for number, seed in enumerate((3, 3, 4, 3)):
        kind = Initialization.RANDOM if number == 3 else Initialization.PRETRAINED
        output, settings = tmp_path / f"{number}", quick(task, seed=seed)
        finetune(task, model, output=output, settings=settings, train=path, test=path, initialization=kind)
        weights.append(AutoModel.from_pretrained(output / "model").state_dict())
        torch.rand(7)
    first, again, other, twin = weights
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert not all(torch.equal(weight, other[name]) for name, weight in first.items())
    name = "embed_tokens.weight"
    assert (first[name] - twin[name]).abs().max() > 10 * (first[name] - other[name]).abs().max()
    assert first[name].shape == twin[name].shape


@pytest.mark.parametrize("task", DATA)
def test_divergence_is_said_and_nothing_is_written(tmp_path, task):
    path, _, _ = DATA[task](tmp_path)
    model, settings = save_encoder("eurobert", tmp_path / "model"), quick(task, learning_rate=1e38)
    with pytest.raises(NonFiniteError, match=r"diverged: .* learning rate 1e\+38.*Try a smaller one"):
        finetune(task, model, output=tmp_path / "out", settings=settings, train=path, test=path)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("task", DATA)
def test_answers_are_those_of_the_weights_alone_after_bf16_training(tmp_path, monkeypatch, task):
    """The Trainer wraps forward in autocast, and leaves it so."""
    monkeypatch.setattr(trainer, "choose_autocast", lambda threads: "bf16")
    path, _, _ = DATA[task](tmp_path)
    source, tuned = open_source(str(save_encoder("eurobert", tmp_path / "model"))), get_task(task)(quick(task))
    data = tuned.read(dict.fromkeys((Split.TRAIN, Split.TEST), path))
    features, network, fresh = tuned.encode(data, source), tuned.network(data, source), tuned.network(data, source)
    tuned.fit(network, features[Split.TRAIN], source, folder=tmp_path / "training")
    fresh.load_state_dict(network.state_dict())
    found, expected = (tuned.answer_splits(one, {Split.TEST: features[Split.TEST]}, source) for one in (network, fresh))
    for one, other in zip(found[Split.TEST], expected[Split.TEST], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("task", DATA)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_decoder_keeps_its_weights(tmp_path, task, kind):
    """Stock classes with a head may look for them under another name than every folder has, and draw others."""
    shape = {"vocab_size": 45, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = AutoConfig.for_model(kind, **shape, num_attention_heads=2, num_key_value_heads=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "decoder")
    plain_tokenizer().save_pretrained(tmp_path / "decoder")
    path, _, _ = DATA[task](tmp_path)
    tuned = get_task(task)(quick(task))
    data = tuned.read(dict.fromkeys((Split.TRAIN, Split.TEST), path))
    tuned.save(tuned.network(data, open_source(str(tmp_path / "decoder"))), tmp_path / "saved", data)
    expected, found = (AutoModel.from_pretrained(tmp_path / name).state_dict() for name in ("decoder", "saved"))
    assert all(torch.equal(weight, found[name]) for name, weight in expected.items())


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
