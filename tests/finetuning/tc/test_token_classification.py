import json
import random

import pytest
import torch
from seqeval.metrics import f1_score
from transformers import (
    ReformerConfig,
    pipeline,
)

from tests.support.hf_encoders import WORDS, plain_tokenizer, save_encoder, template_tokenizer
from tests.support.subword_tokenizers import subword_tokenizer
from tests.support.text import read_lines
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Initialization, Split, open_source
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.tc.tag_schemes import TagScheme, entities_of, rewritten, sentence_macro_f1
from toolkit.finetuning.tc.task import TokenClassification

Settings = TokenClassification.Settings
SETTINGS = Settings(learning_rate=2e-2, seed=3, steps=60, batch_rows=16)
QUICK = Settings(learning_rate=1e-3, seed=3, steps=3, batch_rows=4)


def tag_of(number):
    """Words 0 to 4 begin a person and 5 to 9 continue one, the next ten are likewise for places, the others outside."""
    return "O" if number >= 20 else ("I" if number % 10 >= 5 else "B") + ("-LOC" if number >= 10 else "-PER")


def write_conll(path, sentences, scheme=TagScheme.IOB2):
    rows = [zip(words, rewritten([tag_of(word) for word in words], scheme), strict=True) for words in sentences]
    path.write_text("\n".join("".join(f"w{number}\tX\t{tag}\n" for number, tag in row) for row in rows))
    return path


def draw_sentences(number, *, longest=28):
    draw = random.Random(number)
    sentences = []
    for _ in range(number):
        words = []
        for _ in range(draw.randint(1, longest // 2)):
            kind = draw.choice([0, 10, None, None, None])
            entity = [] if kind is None else [kind + draw.randrange(5), *draw.choices(range(kind + 5, kind + 10), k=1)]
            words += entity[: draw.randint(1, 2)] or [draw.randrange(20, 40)]
        sentences.append(words)
    return sentences


@pytest.fixture
def files(tmp_path):
    long = draw_sentences(3, longest=300)
    return {
        "train": write_conll(tmp_path / "train.conll", draw_sentences(96), TagScheme.IOB1),
        "validation": write_conll(tmp_path / "validation.conll", draw_sentences(24), TagScheme.BIOES),
        "test": write_conll(tmp_path / "test.conll", [*draw_sentences(40), *long]),
    }


def gold(path):
    blocks = path.read_text().strip().split("\n\n")
    return [[line.split("\t")[-1] for line in block.split("\n")] for block in blocks]


@pytest.mark.parametrize("scheme", TagScheme)
def test_predictions_are_written_in_the_test_files_scheme(tmp_path, files, scheme):
    path = write_conll(tmp_path / "other.conll", draw_sentences(40), scheme)
    task = TokenClassification(QUICK)
    data = task.read({Split.TRAIN: files["train"], Split.TEST: path})
    assert data.schemes == {Split.TRAIN: TagScheme.IOB1, Split.TEST: scheme}
    features = task.encode(data, open_source(str(save_encoder("eurobert", tmp_path / "model"))))
    answers = [one_hot([max(label, 0) for label in row["labels"]], 5) for row in features[Split.TEST]]
    predictions = task.decode(data, features, {Split.TEST: answers})
    assert [row["prediction"] for row in predictions[Split.TEST]] == gold(path)
    assert task.score(data, predictions)[Split.TEST] == {"precision": 1.0, "recall": 1.0, "f1": 1.0}


def test_a_sentence_may_be_longer_than_the_model_takes(tmp_path, files):
    """Groups of the stock pipeline are its entities."""
    result = finetune(
        "tc", save_encoder("bert", tmp_path / "bert"), output=tmp_path / "out", settings=SETTINGS, **files
    )
    assert result.test["f1"] >= 0.9
    assert list(result.validation) == list(result.test) == ["precision", "recall", "f1"]
    assert result.majority == 0.0
    tags = [row["prediction"] for row in read_lines(tmp_path / "out" / "predictions.jsonl")]
    assert f1_score(gold(files["test"]), tags) == result.test["f1"]
    assert [len(row) for row in tags] == [len(row) for row in gold(files["test"])]
    assert max(map(len, tags)) > 100
    texts = [" ".join(f"w{number}" for number in words) for words in draw_sentences(40)]
    tagger = pipeline("token-classification", model=str(tmp_path / "out" / "model"), device="cpu")
    assert list(tagger.model.config.id2label.values()) == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    for text, answer, expected in zip(texts, tagger(texts[:10], aggregation_strategy="first"), tags, strict=False):
        spans = [(row["entity_group"], row["word"]) for row in answer]
        words = text.split()
        assert spans == [(kind, " ".join(words[begin : last + 1])) for kind, begin, last in entities_of(expected)]


def test_the_papers_protocol(tmp_path, files):
    model, output = save_encoder("eurobert", tmp_path / "model"), tmp_path / "out"
    settings = SETTINGS.model_copy(update={"protocol": "paper"})
    test = write_conll(tmp_path / "short.conll", draw_sentences(40))
    result = finetune("tc", model, train=files["train"], test=test, output=output, settings=settings)
    assert (result.metric, list(result.test), list(result.validation)) == ("paper_f1", ["paper_f1"], ["paper_f1"])
    names = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    truth, tags = gold(test), [row["prediction"] for row in read_lines(output / "predictions.jsonl")]
    numbers = [[[names.index(tag) for tag in row] for row in rows] for rows in (truth, tags)]
    assert result.test["paper_f1"] == sentence_macro_f1(*numbers) > 0.8
    outside = [[0] * len(row) for row in truth]
    assert result.majority == sentence_macro_f1(numbers[0], outside)


def data_and_source(tmp_path, text, *, protocol="standard", tokenizer=None):
    path = tmp_path / "data.conll"
    path.write_text(text)
    model = save_encoder("eurobert", tmp_path / "model")
    tokenizer = tokenizer or plain_tokenizer()
    tokenizer.save_pretrained(model)
    # Its weights are not read here.
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": len(tokenizer)}))
    task = TokenClassification(QUICK.model_copy(update={"protocol": protocol}))
    return task, task.read(dict.fromkeys(Split, path)), open_source(str(model))


def one_hot(classes, number=3):
    return torch.nn.functional.one_hot(torch.tensor(classes), number).numpy()


def test_labels_of_tokens(tmp_path):
    text = "w1 w2\tI-A\nw3\tI-A\nw4\tO\n"
    task, data, source = data_and_source(tmp_path, text)
    (row,) = task.encode(data, source)[Split.TEST]
    assert data.tags == ("O", "B-A", "I-A")
    assert row["labels"] == [1, -100, 2, 0], "a word counts at its first token"
    task, data, source = data_and_source(tmp_path, text, protocol="paper")
    (row,) = task.encode(data, source)[Split.TEST]
    assert row["labels"] == [1, 1, 2, 0, -100], "and under the paper's protocol at each; not at the end of the text"


def test_a_blank_is_inside_an_entity_that_the_word_behind_it_continues(tmp_path):
    tokenizer = subword_tokenizer("byte-level BPE")
    tokens = ["a", "\u00e9", "\u00e9", "\u00e9"]
    text = "".join(f"{token}\t{tag}\n" for token, tag in zip(tokens, ["O", "B-A", "I-A", "O"], strict=True))
    task, data, source = data_and_source(tmp_path, text, tokenizer=tokenizer)
    (row,) = task.encode(data, source)[Split.TEST]
    # a, then a blank and two bytes of each word, and the end of the text.
    assert row["labels"] == [0, 0, 1, -100, 2, 2, -100, 0, 0, -100, -100]


def test_the_paper_votes_over_the_tokens_of_a_word(tmp_path):
    task, data, source = data_and_source(tmp_path, "w1 w2 w3\tB-A\nw4 w5\tI-A\nw6\tO\n", protocol="paper")
    features = task.encode(data, source)
    answers = {Split.TEST: [one_hot([2, 1, 1, 2, 0, 1, 2])]}
    predictions = task.decode(data, features, answers)
    # Two of three for B-A; one each for I-A and O, and O comes first; what the end of the text says counts nowhere.
    assert predictions[Split.TEST] == [{"prediction": ["B-A", "O", "B-A"], "classes": [1, 0, 1]}]
    # B-A: precision 1/2, recall 1, F1 2/3; I-A and O: 0.
    assert task.score(data, predictions)[Split.TEST] == {"paper_f1": pytest.approx(2 / 9)}


def test_words_that_the_tokenizer_drops_get_a_tag(tmp_path):
    task, data, source = data_and_source(tmp_path, "w1\tB-A\n\xa0\tI-A\nw2\tI-A\n\n\xa0\tB-A\n")
    features = task.encode(data, source)
    predictions = task.decode(data, features, {Split.TEST: [one_hot([1, 2])]})[Split.TEST]
    assert [row["prediction"] for row in predictions] == [["B-A", "O", "I-A"], ["O"]]


def test_the_loss_is_the_mean_over_words(tmp_path):
    task = TokenClassification(QUICK)
    labels = task.collate_labels([[1, -100, 0], [2]], width=4)
    assert labels.tolist() == [[1, -100, 0, -100], [2, -100, -100, -100]]
    logits = torch.zeros(2, 4, 3)
    logits[0, 0, 1] = 10.0
    expected = (torch.tensor([0.0, 10.0, 0.0]).logsumexp(0) - 10 + 2 * torch.log(torch.tensor(3.0))) / 3
    assert task.loss(logits, labels).item() == pytest.approx(expected.item(), abs=1e-6)


def test_dropout_of_the_head(tmp_path, files):
    model = open_source(str(save_encoder("bert", tmp_path / "model")))
    model.config.classifier_dropout = 0.3
    rates = []
    for protocol in ("standard", "paper"):
        task = TokenClassification(QUICK.model_copy(update={"protocol": protocol}))
        data = task.read({Split(name): path for name, path in files.items()})
        rates.append(task.network(data, model).dropout.p)
    assert rates == [0.3, 0.0]


def test_an_architecture_without_token_classification(tmp_path, files):
    task = TokenClassification(QUICK)
    data = task.read({Split(name): path for name, path in files.items()})
    source = EncoderSource("m", ReformerConfig(), template_tokenizer(), 32, frozenset(), Initialization.PRETRAINED)
    with pytest.raises(UserError, match=r"no token classification for m \(reformer\)\. Use an encoder"):
        task.network(data, source)


def test_a_test_file_may_lack_types_and_a_training_file_inner_tags(tmp_path):
    paths = {Split.TRAIN: tmp_path / "train.conll", Split.TEST: tmp_path / "test.conll"}
    paths[Split.TRAIN].write_text("a B-PER\nb O\nc B-MISC\n")
    paths[Split.TEST].write_text("a B-PER\nb I-PER\n")
    data = TokenClassification(QUICK).read(paths)
    assert data.tags == ("O", "B-MISC", "I-MISC", "B-PER", "I-PER")
    assert data.classes(Split.TEST) == [[3, 4]]


def test_the_papers_validation_split(tmp_path):
    paths = {Split.TRAIN: write_conll(tmp_path / "t", [[0], *draw_sentences(99)]), Split.TEST: tmp_path / "t"}
    data = TokenClassification(QUICK.model_copy(update={"protocol": "paper"})).read(paths)
    assert [len(data.sentences[split]) for split in Split] == [95, 5, 100]
    places = [row.places[0] for split in (Split.TRAIN, Split.VALIDATION) for row in data.sentences[split]]
    assert sorted(places) == sorted(row.places[0] for row in data.sentences[Split.TEST])
    assert WORDS[0] in data.sentences[Split.TEST][0].tokens
