import pytest
import torch
from transformers import PretrainedConfig

from tests.support.hf_encoders import CLS, EOS, PAD, SPECIALS, plain_tokenizer, template_tokenizer
from toolkit.core.errors import UserError
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.inputs import check_not_empty, encode_texts, framed_source
from toolkit.finetuning.sc.task import SequenceClassification, SequenceClassificationSettings
from toolkit.finetuning.settings import Initialization
from toolkit.finetuning.trainer import collator

W = len(SPECIALS)
ALL = frozenset({"input_ids", "attention_mask", "token_type_ids"})


def source_of(tokenizer, *, max_length=100, accepted=ALL):
    return EncoderSource("model", PretrainedConfig(), tokenizer, max_length, accepted, Initialization.PRETRAINED)


def collate(tokenizer, rows):
    return collator(SequenceClassification(SequenceClassificationSettings()), source_of(tokenizer))(rows)


def ids_of(tokenizer, *examples, max_length=100):
    source = framed_source(source_of(tokenizer, max_length=max_length), protocol="standard")
    first, second = zip(*examples, strict=True)
    rows, num_cut = encode_texts(source, first, None if second[0] is None else second)
    return [row["input_ids"] for row in rows], num_cut


def test_the_end_token_is_added_where_the_tokenizer_adds_none():
    assert ids_of(plain_tokenizer(), ("w1 w2", None), ("", None)) == ([[W + 1, W + 2, EOS], [EOS]], 0)


def test_the_tokenizers_own_template_is_left_alone():
    assert ids_of(template_tokenizer(), ("w1 w2", None)) == ([[CLS, W + 1, W + 2, EOS]], 0)


def test_a_pair_uses_the_template_or_a_line_break():
    assert ids_of(template_tokenizer(), ("w1", "w2"))[0] == [[CLS, W + 1, EOS, W + 2, EOS]]
    assert ids_of(plain_tokenizer(), ("w1", "w2"))[0] == [[W + 1, W + 2, EOS]]
    with_break = plain_tokenizer()
    with_break.add_tokens(["\n"])
    assert ids_of(with_break, ("w1", "w2"))[0] == [[W + 1, with_break.convert_tokens_to_ids("\n"), W + 2, EOS]]


def test_long_texts_lose_their_end_and_keep_the_end_token():
    ids, num_cut = ids_of(plain_tokenizer(), ("w1 w2 w3 w4 w5", None), ("w1 w2 w3", None), max_length=4)
    assert ids == [[W + 1, W + 2, W + 3, EOS], [W + 1, W + 2, W + 3, EOS]]
    assert num_cut == 1
    ids, num_cut = ids_of(template_tokenizer(), ("w1 w2 w3 w4", "w5 w6"), max_length=7)
    assert ids == [[CLS, W + 1, W + 2, EOS, W + 5, W + 6, EOS]]
    assert num_cut == 1


@pytest.mark.parametrize(
    ("tokenizer", "texts", "max_length", "needed"),
    [
        (template_tokenizer, ("w1 w2 w3", None), 1, 3),
        (template_tokenizer, ("w1 w2 w3", None), 2, 3),
        (template_tokenizer, ("w1 w2 w3", "w4"), 2, 5),
        (template_tokenizer, ("w1 w2 w3", "w4"), 4, 5),
        (plain_tokenizer, ("w1 w2 w3", None), 1, 2),
    ],
)
def test_a_length_that_special_tokens_fill_is_refused(tokenizer, texts, max_length, needed):
    """The tokenizers library would return texts that are longer than that, or none at all."""
    with pytest.raises(UserError, match=rf"max_length = {max_length} leaves no room .* at least {needed}\."):
        ids_of(tokenizer(), texts, max_length=max_length)
    ids, _ = ids_of(tokenizer(), texts, max_length=needed)
    assert len(ids[0]) == needed


def test_a_batch_is_padded_on_the_right_and_masked():
    rows = [
        {"input_ids": [7, 8, 9], "attention_mask": [1, 1, 1], "token_type_ids": [0, 1, 1], "labels": 1},
        {"input_ids": [5], "attention_mask": [1], "token_type_ids": [0], "labels": 0},
    ]
    tokenizer = template_tokenizer()
    tokenizer.padding_side = "left"
    batch = collate(tokenizer, rows)
    assert torch.equal(batch["input_ids"], torch.tensor([[7, 8, 9], [5, PAD, PAD]]))
    assert torch.equal(batch["attention_mask"], torch.tensor([[1, 1, 1], [1, 0, 0]]))
    assert torch.equal(batch["token_type_ids"], torch.tensor([[0, 1, 1], [0, 0, 0]]))
    assert torch.equal(batch["labels"], torch.tensor([1, 0]))
    assert tokenizer.padding_side == "left", "the tokenizer that is saved stays as it was"


def test_a_tokenizer_without_padding_token_pads_behind_the_mask():
    bare = plain_tokenizer()
    bare.pad_token = None
    batch = collate(bare, [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": 0} for ids in ([7, 8], [9])])
    assert torch.equal(batch["input_ids"], torch.tensor([[7, 8], [9, 0]]))
    assert torch.equal(batch["attention_mask"], torch.tensor([[1, 1], [1, 0]]))
    assert bare.pad_token is None


def test_arguments_that_the_model_does_not_take_are_dropped():
    source = source_of(template_tokenizer(), accepted=frozenset({"input_ids", "attention_mask"}))
    assert set(encode_texts(source, ["w1"])[0][0]) == {"input_ids", "attention_mask"}


def test_a_text_without_a_token_is_refused():
    bare = plain_tokenizer()
    bare.eos_token = None
    rows, _ = encode_texts(source_of(bare), ["w1", " "])
    with pytest.raises(UserError, match=r"test\.tsv, row 2: the text is empty"):
        check_not_empty(rows, "test.tsv", numbers=[1, 2])
