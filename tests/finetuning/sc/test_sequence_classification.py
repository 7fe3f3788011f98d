import json
import random

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, EuroBertForMaskedLM

from tests.support.hf_encoders import WORDS, save_encoder
from tests.support.text import read_lines, write_lines
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Initialization, load_classifier
from toolkit.finetuning.sc.task import SequenceClassification, SequenceClassificationSettings

STOCK = ("eurobert", "modernbert", "ultrabert")
FAMILIES = (*STOCK, "bert", "roberta")
QUICK = SequenceClassificationSettings(learning_rate=1e-3, seed=3, steps=3, batch_rows=4)


@pytest.fixture
def files(tmp_path):
    """Texts of 3 to 12 words; the label says which half of the vocabulary they come from."""
    draw = random.Random(0)
    halves = WORDS[:20], WORDS[20:]
    rows = [
        {"text": " ".join(draw.choices(halves[number % 2], k=draw.randint(3, 12))), "label": number % 2}
        for number in range(160)
    ]
    names = {"train": rows[:96], "validation": rows[96:120], "test": rows[120:]}
    return {name: write_lines(tmp_path / f"{name}.jsonl", part) for name, part in names.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_keep_their_type_and_auto_model_finds_the_trained_encoder(tmp_path, files, family):
    model, output = save_encoder(family, tmp_path / family), tmp_path / "out"
    finetune("sc", model, output=output, settings=QUICK, **files)
    rows = read_lines(files["test"])
    answers = load_classifier(str(output / "model"))([row["text"] for row in rows])
    predictions = read_lines(output / "predictions.jsonl")
    assert [row["label"] for row in predictions] == [row["label"] for row in rows]
    assert answers == [row["prediction"] for row in predictions]
    assert json.loads((output / "model" / "labels.json").read_text()) == [0, 1]
    before, after = AutoModel.from_pretrained(model), AutoModel.from_pretrained(output / "model")
    whole = load_classifier(output / "model").network
    inside = whole.base_model if family in STOCK else whole.encoder
    for name, weight in after.state_dict().items():
        assert torch.equal(weight, inside.state_dict()[name]), name
    embedding = [encoder.get_input_embeddings().weight for encoder in (before, after)]
    assert not torch.equal(*embedding)


@pytest.mark.parametrize("family", STOCK)
def test_a_stock_classifier_with_mean_pooling_is_saved_where_there_is_one(tmp_path, files, family):
    model = save_encoder(family, tmp_path / "model")
    finetune("sc", model, output=tmp_path / "out", settings=QUICK, **files)
    stock, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out" / "model", output_loading_info=True
    )
    assert stock.config.classifier_pooling == "mean"
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_weights_are_trained_in_fp32_whatever_the_folder_holds(tmp_path, files):
    model = save_encoder("eurobert", tmp_path / "model", dtype=torch.bfloat16)
    settings = QUICK.model_copy(update={"learning_rate": 1e-6})
    finetune("sc", model, output=tmp_path / "out", settings=settings, **files)
    before = EuroBertForMaskedLM.from_pretrained(model, dtype=torch.float32).model.norm.weight
    after = AutoModel.from_pretrained(tmp_path / "out" / "model").norm.weight
    assert after.dtype == torch.float32
    # In bf16 a step of 1e-6 from 1.0 would be lost to rounding.
    assert 0 < (after - before).abs().max() < 1e-5


def test_a_random_twin_takes_the_shape_and_none_of_the_weights(tmp_path, files):
    settings = QUICK.model_copy(update={"learning_rate": 1e-9})
    twins = []
    for number, shift in enumerate((0.0, 1.0)):
        folder = save_encoder("eurobert", tmp_path / f"model{number}")
        encoder = EuroBertForMaskedLM.from_pretrained(folder)
        encoder.model.embed_tokens.weight.data += shift
        encoder.save_pretrained(folder)
        result = finetune(
            "sc",
            folder,
            output=tmp_path / f"{number}",
            settings=settings,
            initialization=Initialization.RANDOM,
            **files,
        )
        twins.append(AutoModel.from_pretrained(tmp_path / f"{number}" / "model").embed_tokens.weight)
    assert result.initialization == "random"
    assert torch.equal(twins[0], twins[1])
    assert twins[0].shape == encoder.model.embed_tokens.weight.shape


def test_padding_does_not_change_an_answer(tmp_path, files):
    model = save_encoder("modernbert", tmp_path / "model")
    finetune("sc", model, output=tmp_path / "out", settings=QUICK, **files)
    classifier = load_classifier(tmp_path / "out" / "model").network
    ids = torch.tensor([[2, 9, 8, 1]])
    alone = classifier(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    padded = classifier(
        input_ids=torch.tensor([[2, 9, 8, 1, 7, 7]]), attention_mask=torch.tensor([[1, 1, 1, 1, 0, 0]])
    ).logits
    assert torch.allclose(alone, padded, atol=1e-6)


def test_string_labels_pairs_and_no_validation(tmp_path):
    rows = [{"a": f"w{n}", "b": f"w{n + 1}", "verdict": "same" if n % 3 else "other"} for n in range(12)]
    path = write_lines(tmp_path / "pairs.jsonl", rows)
    settings = QUICK.model_copy(update={"text_columns": ("a", "b"), "label_column": "verdict"})
    model = save_encoder("bert", tmp_path / "model")
    result = finetune("sc", model, train=path, test=path, output=tmp_path / "out", settings=settings)
    assert result.validation is None
    assert result.dataset == "pairs"
    assert result.majority == pytest.approx(8 / 12)
    predictions = read_lines(tmp_path / "out" / "predictions.jsonl")
    assert {row["prediction"] for row in predictions} <= {"same", "other"}
    assert [row["label"] for row in predictions] == [row["verdict"] for row in rows]


def test_texts_longer_than_the_model_takes_are_cut_and_counted(tmp_path, files, capsys):
    rows = [{"text": " ".join(["w1"] * length), "label": length % 2} for length in (5, 32, 33, 100)]
    path = write_lines(tmp_path / "long.jsonl", rows)
    model = save_encoder("roberta", tmp_path / "model")
    finetune("sc", model, train=files["train"], test=path, output=tmp_path / "out", settings=QUICK)
    # 34 positions, of which RoBERTa gives up its padding position; two of the 33 are the template's.
    assert "long.jsonl: 3 of 4 texts were truncated to 33 tokens." in " ".join(capsys.readouterr().out.split())


def test_a_model_of_pairs_predicts_no_single_texts(tmp_path, files):
    task = SequenceClassification(SequenceClassificationSettings(text_columns=("text",)))
    with pytest.raises(UserError, match=r"on rows of 2 texts \(a, b\), but 1 text \(text\) .* --text-columns"):
        task.read_open(files["test"], tmp_path, {"columns": ["a", "b"]})
