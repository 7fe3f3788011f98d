import copy
import json
import random

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
)

from tests.finetuning.qa.test_squad import write_record
from tests.support.grids import squad_paragraph
from tests.support.hf_encoders import WORDS, save_encoder
from tests.support.text import read_lines
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import get_task
from toolkit.finetuning.encoder_source import open_source
from toolkit.finetuning.qa.answers import best_span
from toolkit.finetuning.qa.squad import Answer, Question
from toolkit.finetuning.qa.task import PaperQuestionAnswering, QuestionAnswering, QuestionAnsweringSettings, Questions
from toolkit.finetuning.settings import Split

SETTINGS = QuestionAnsweringSettings(learning_rate=1e-2, seed=3, steps=40, batch_rows=16, window_overlap=8)
QUICK = SETTINGS.model_copy(update={"learning_rate": 1e-3, "steps": 2, "batch_rows": 4})
PAPER = SETTINGS.model_copy(update={"protocol": "paper"})


def write_questions(path, questions):
    asked = [
        squad_paragraph(one.context, one.question, [(answer.text, answer.start) for answer in one.answers], key=one.id)
        for one in questions
    ]
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]} for paragraph in asked]}), "utf-8")
    return path


def make_questions(count, *, seed, answerable=1.0, longest=24):
    """The answer is two of the vocabulary's first ten words in a row, among others; or there is none."""
    draw = random.Random(seed)
    questions = []
    for number in range(count):
        words = draw.choices(WORDS[10:], k=draw.randint(6, longest))
        answers = ()
        if draw.random() < answerable:
            place = draw.randint(0, len(words) - 2)
            words[place : place + 2] = draw.choices(WORDS[:10], k=2)
            text = " ".join(words[place : place + 2])
            answers = (Answer(len("".join(f"{word} " for word in words[:place])), text),)
        questions.append(Question(f"q{seed}-{number}", " ".join(words), draw.choice(["w30 w31", "w32"]), answers))
    return questions


def make_files(folder, *, longest=24, answerable=0.7):
    sizes = {"train": 128, "validation": 40, "test": 40}
    return {
        name: write_questions(
            folder / f"{name}.json", make_questions(size, seed=seed, answerable=answerable, longest=longest)
        )
        for seed, (name, size) in enumerate(sizes.items())
    }


def test_a_question_may_have_no_answer(tmp_path):
    files, output = make_files(tmp_path), tmp_path / "out"
    result = finetune("qa", save_encoder("bert", tmp_path / "bert"), output=output, settings=SETTINGS, **files)
    assert set(result.test) == set(result.validation) == {"exact_match", "f1"}
    questions = make_questions(40, seed=2, answerable=0.7)
    assert result.majority == sum(not question.answers for question in questions) / 40
    assert result.test["f1"] > result.majority + 0.3
    predictions = read_lines(output / "predictions.jsonl")
    assert [row["id"] for row in predictions] == [question.id for question in questions]
    assert all(row["prediction"] in question.context for row, question in zip(predictions, questions, strict=True))
    assert 0 < sum(row["prediction"] == "" for row in predictions) < 40
    assert AutoConfig.from_pretrained(output / "model").id2label == {0: "start", 1: "end"}


def test_long_contexts_are_read_whole(tmp_path):
    """Contexts of up to 90 words in inputs of 20 tokens; answers lie anywhere."""
    files = make_files(tmp_path, longest=90, answerable=1.0)
    model, output = save_encoder("modernbert", tmp_path / "model"), tmp_path / "out"
    settings = SETTINGS.model_copy(update={"max_length": 20, "steps": 80})
    result = finetune("qa", model, output=output, settings=settings, **files)
    assert result.test["f1"] > 0.5
    late = [
        row["prediction"] in question.answers[0].text
        for row, question in zip(
            read_lines(output / "predictions.jsonl"), make_questions(40, seed=2, longest=90), strict=True
        )
        if question.answers[0].start > 100
    ]
    assert len(late) > 10
    assert np.mean(late) > 0.5
    assert all(row["prediction"] for row in read_lines(output / "predictions.jsonl")), "every question has an answer"
    assert AutoConfig.from_pretrained(output / "model").null_threshold is None


def spans_of(questions, tmp_path, *, max_length=None, answer_length=30):
    source = open_source(str(save_encoder("bert", tmp_path / "model")), max_length=max_length)
    task = QuestionAnswering(QuestionAnsweringSettings(window_overlap=2, max_answer_length=answer_length))
    features, _ = task.inputs(questions, source)
    outputs = [np.zeros((len(row["input_ids"]), 2), np.float32) for row in features]
    return task, features, outputs


def answers_of(task, splits, features, outputs):
    """Predictions of the test split."""
    return task.decode(Questions({}, splits), features, outputs)[Split.TEST]


def test_labels_are_the_answers_tokens_or_the_null_position(tmp_path):
    context = "w1 w2 w3 w4 w5 w6"
    questions = [
        Question(1, context, "w9", (Answer(6, "w3 w4"),)),
        Question(2, context, "w9", ()),
        Question(3, context, "w9", (Answer(12, "w5 w6"), Answer(0, "w1"))),
    ]
    _, features, _ = spans_of(questions[:2], tmp_path)
    assert [row["labels"] for row in features] == [[5, 6, 10], [0, 0, 10]]
    _, features, _ = spans_of(questions[2:], tmp_path, max_length=8)
    # <cls> w9 <eos> w1 w2 w3 w4 <eos>, then w3 to w6: the first answer that a window holds whole.
    assert [row["labels"] for row in features] == [[3, 3, 8], [5, 6, 8]]


def test_the_best_span_of_all_windows_is_taken_and_the_lowest_null_score(tmp_path):
    question = Question(1, "w1 w2 w3 w4 w5 w6", "w9", ())
    task, features, outputs = spans_of([question], tmp_path, max_length=8)
    assert len(outputs) == 2
    outputs[0][4, 0], outputs[0][5, 1] = 2.0, 1.0  # "w2 w3" of the first window: 3
    outputs[1][6, 0], outputs[1][6, 1] = 2.0, 2.0  # "w6" of the second: 4
    outputs[0][0], outputs[1][0] = 1.5, 9.0  # no answer: 3 and 18
    # Scores of the question and of special tokens are none of an answer's.
    outputs[0][1], outputs[1][7] = 50.0, 50.0
    splits = {Split.TRAIN: [question], Split.TEST: [question]}
    [row] = answers_of(task, splits, {Split.TEST: features}, {Split.TEST: outputs})
    assert row == {"id": 1, "prediction": "w6"}
    outputs[0][0] = 2.1  # 4.2 exceeds 4 by more than the threshold of 0
    [row] = answers_of(task, splits, {Split.TEST: features}, {Split.TEST: outputs})
    assert row == {"id": 1, "prediction": ""}
    answered = [Question(1, question.context, "w9", (Answer(0, "w1"),))]
    splits = {Split.TRAIN: answered, Split.TEST: [question]}
    [row] = answers_of(task, splits, {Split.TEST: features}, {Split.TEST: outputs})
    assert row == {"id": 1, "prediction": "w6"}, "nothing in training or validation was without an answer"


def test_the_null_threshold_is_the_best_on_the_validation_split(tmp_path):
    """Differences 1 (right answer), 2 (right answer), 3 (none) and 4 (none): the threshold is 2."""
    context = "w1 w2"
    answers = (Answer(0, "w1"),)
    questions = [Question(number, context, "w9", answers if number <= 2 else ()) for number in (1, 2, 3, 4)]
    task, features, outputs = spans_of(questions, tmp_path)
    for number, logits in enumerate(outputs, start=1):
        logits[0, 0], logits[3] = number, (0.5, 0.5)
        logits[0, 0] += 1.0
    splits = {Split.TRAIN: questions, Split.VALIDATION: questions, Split.TEST: questions}
    both = dict.fromkeys((Split.VALIDATION, Split.TEST), features)
    rows = answers_of(task, splits, both, dict.fromkeys(both, outputs))
    assert [row["prediction"] for row in rows] == ["w1", "w1", "", ""]
    data = Questions({}, splits)
    assert task.score(data, {Split.TEST: rows}) == {Split.TEST: {"exact_match": 1.0, "f1": 1.0}}
    task.save(task.network(data, open_source(str(tmp_path / "model"))), tmp_path / "saved", data)
    assert AutoConfig.from_pretrained(tmp_path / "saved").null_threshold == 2.0
    rows = answers_of(task, splits, {Split.TEST: features}, {Split.TEST: outputs})
    assert [row["prediction"] for row in rows] == [""] * 4, "0 without a validation split"


def test_a_span_is_at_most_as_long_as_allowed_and_ends_behind_its_start(tmp_path):
    question = Question(1, "w1 w2 w3 w4", "w9", ())
    _, [row], [logits] = spans_of([question], tmp_path)
    logits[3, 0], logits[6, 1], logits[5, 0], logits[4, 1] = 9.0, 9.0, 1.0, 2.0
    assert best_span(row["window"], question.context, logits, max_length=4) == ("w1 w2 w3 w4", 18.0)
    assert best_span(row["window"], question.context, logits, max_length=3) == ("w1 w2", 11.0)
    assert best_span(row["window"], question.context, logits, max_length=1) == ("w1", 9.0)


def test_the_loss_leaves_padding_out(tmp_path):
    task = QuestionAnswering(QuestionAnsweringSettings())
    logits = torch.tensor([[[1.0, 2.0], [3.0, 0.5], [7.0, 9.0]]])
    alone = task.loss(logits[:, :2], torch.tensor([[1, 0, 2]]))
    by_hand = (np.log(np.exp(1) + np.exp(3)) - 3 + np.log(np.exp(2) + np.exp(0.5)) - 2) / 2
    assert alone.item() == pytest.approx(by_hand, rel=1e-6)
    assert task.loss(logits, torch.tensor([[1, 0, 2]])).item() == pytest.approx(by_hand, rel=1e-6)


def tags_of(questions, tmp_path, *, max_length=None):
    source = open_source(str(save_encoder("eurobert", tmp_path / "model")), max_length=max_length)
    task = QuestionAnswering(PAPER)
    features, num_cut = task.inputs(questions, source)
    return task, features, num_cut, source


def test_paper_inputs_and_tags(tmp_path):
    questions = [
        Question(1, "  w1 w2 w3 <unk>", "w9 ", (Answer(5, "w2 w3"), Answer(2, "w1"))),
        Question(2, "w1 w2", "w9", ()),
    ]
    _, features, num_cut, source = tags_of(questions, tmp_path)
    ids = source.tokenizer.convert_tokens_to_ids(["<unk>", "w9", "<unk>", "w1", "w2", "w3", "<unk>", "<eos>"])
    assert features[0]["input_ids"] == ids, "Question: w9 / Context: w1 w2 w3 <unk> and the end, nothing in front"
    assert features[0]["labels"] == [0, 0, 0, 0, 1, 1, 0, 0], "the first answer alone"
    assert features[1]["labels"] == [0] * 6
    assert num_cut == 0
    _, features, num_cut, _ = tags_of(questions, tmp_path, max_length=6)
    assert [row["input_ids"] for row in features] == [ids[:6], [*ids[:5], ids[-1]]], "99 % of 6, rounded, is 6"
    assert num_cut == 1
    _, features, num_cut, _ = tags_of(questions, tmp_path, max_length=5)
    assert features[0]["labels"] == [0, 0, 0, 0, 1], "what is left of the answer"


def test_paper_f1_by_hand(tmp_path):
    answers = (Answer(3, "w2 w3 w4"),)
    questions = [Question(number, "w1 w2 w3 w4 w5", "w9", answers if number < 4 else ()) for number in range(5)]
    task, features, _, _ = tags_of(questions, tmp_path)
    outputs = [np.zeros((len(row["input_ids"]), 2), np.float32) for row in features]
    for logits in outputs:
        logits[:, 0] = 0.5
    outputs[0][4:7, 1] = 1  # all three
    outputs[1][[1, 4], 1] = 1  # a word of the question, and one of three
    outputs[2][[3, 7], 1] = 1  # beside it
    splits = {Split.TEST: questions}
    rows = answers_of(task, splits, {Split.TEST: features}, {Split.TEST: outputs})
    assert [row["prediction"] for row in rows] == ["w2 w3 w4", "w2", "w1 w2 w3 w4 w5", "", ""]
    expected = (1 + 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3) + 0 + 0 + 1) / 5
    found = task.score(Questions({}, splits), {Split.TEST: rows})[Split.TEST]
    assert found == {"paper_f1": pytest.approx(expected, abs=1e-12)}


def test_predicting_nothing_scores_the_unanswerable_share_under_paper(tmp_path):
    questions = make_questions(60, seed=5, answerable=0.6)
    share = sum(not question.answers for question in questions) / 60
    assert 0.2 < share < 0.6
    for some, expected in ((questions, share), ([question for question in questions if question.answers], 0.0)):
        task, features, _, _ = tags_of(some, tmp_path)
        outputs = [np.tile(np.array([1.0, 0.0], np.float32), (len(row["input_ids"]), 1)) for row in features]
        rows = answers_of(task, {Split.TEST: some}, {Split.TEST: features}, {Split.TEST: outputs})
        scores = task.score(Questions({}, {Split.TEST: some}), {Split.TEST: rows})
        assert scores[Split.TEST]["paper_f1"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("family", ["eurobert", "bert"])
def test_the_paper_protocol_learns_and_cuts_its_validation_split(tmp_path, family):
    files = make_files(tmp_path)
    del files["validation"]
    model, output = save_encoder(family, tmp_path / "model"), tmp_path / "out"
    result = finetune("qa", model, output=output, settings=PAPER, **files)
    assert (result.protocol, result.metric) == ("paper", "paper_f1")
    assert set(result.test) == set(result.validation) == {"paper_f1"}
    assert result.test["paper_f1"] > result.majority + 0.3
    predictions, questions = read_lines(output / "predictions.jsonl"), make_questions(40, seed=2, answerable=0.7)
    assert all(row["prediction"] in question.context for row, question in zip(predictions, questions, strict=True))
    loaded = AutoModelForTokenClassification.from_pretrained(output / "model")
    assert loaded.config.id2label == {0: "outside", 1: "answer"}
    data = QuestionAnswering(PAPER).read({Split.TRAIN: files["train"], Split.TEST: files["test"]})
    assert {split: len(rows) for split, rows in data.questions.items()} == {"train": 121, "validation": 7, "test": 40}


@pytest.mark.parametrize(("settings", "kind"), [(SETTINGS, QuestionAnswering), (PAPER, PaperQuestionAnswering)])
def test_the_protocol_decides_the_class_also_of_a_copy(settings, kind):
    task = get_task("qa")(settings)
    assert type(task) is type(copy.deepcopy(task)) is kind


def test_record_runs_and_keeps_its_ids(tmp_path):
    path = write_record(tmp_path / "train.jsonl")
    model = save_encoder("bert", tmp_path / "model")
    result = finetune("qa", model, train=path, test=path, output=tmp_path / "out", settings=QUICK)
    [row] = read_lines(tmp_path / "out" / "predictions.jsonl")
    assert row["id"] == 7
    assert row["prediction"]
    assert result.majority == 0


def test_truncated_questions_are_counted(tmp_path, capsys):
    files = make_files(tmp_path)
    questions = [Question(1, "w1 w2", " ".join(["w3"] * 50), (Answer(0, "w1"),))]
    test = write_questions(tmp_path / "long.json", questions)
    model = save_encoder("bert", tmp_path / "model")
    finetune("qa", model, train=files["train"], test=test, output=tmp_path / "out", settings=QUICK)
    assert "long.json: 1 of 1 question truncated." in " ".join(capsys.readouterr().out.split())
