import itertools
import types

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PretrainedConfig, PreTrainedTokenizerFast

from tests.support.hf_encoders import CLS, EOS, SPECIALS, plain_tokenizer, template_tokenizer
from toolkit.core.errors import UserError
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.inputs import framed_source
from toolkit.finetuning.qa.answers import best_span
from toolkit.finetuning.qa.windows import WindowBuilder
from toolkit.finetuning.settings import Initialization

W = len(SPECIALS)
CONTEXT = " Ünï  codé, naïve — 日本 x\u2028y  tail\n"


def byte_level(*, trims, template):
    """Bytes as tokens, and a few pairs of them; with or without the blank in front of a word in its offsets."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *alphabet, "Ġn", "ai", "ta", "il"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "n"), ("a", "i"), ("t", "a"), ("i", "l")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if template:
        tokenizer.post_processor = processors.RobertaProcessing(("<eos>", 1), ("<eos>", 1), trim_offsets=trims)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


TOKENIZERS = {
    "words": plain_tokenizer,
    "words with a template": template_tokenizer,
    "bytes": lambda: byte_level(trims=False, template=False),
    "bytes with a template": lambda: byte_level(trims=False, template=True),
    "bytes with a template, trimmed": lambda: byte_level(trims=True, template=True),
}


def windows_of(tokenizer, *pairs, max_length=100, overlap=2):
    names = frozenset({"input_ids", "attention_mask", "token_type_ids"})
    source = EncoderSource("model", PretrainedConfig(), tokenizer, max_length, names, Initialization.PRETRAINED)
    questions, contexts = zip(*pairs, strict=True)
    source = framed_source(source, protocol="standard") if getattr(tokenizer, "backend_tokenizer", None) else source
    return WindowBuilder(source, overlap=overlap)(questions, contexts)


def ids_of(windows):
    return [window.inputs["input_ids"] for window in windows]


def test_a_pair_that_fits_is_one_window_as_the_tokenizer_makes_it():
    (bare,), _ = windows_of(plain_tokenizer(), ("w1 w2", "w3 w4"))
    assert ids_of(bare) == [[W + 1, W + 2, W + 3, W + 4, EOS]]
    assert bare[0].offsets.tolist() == [[-1, -1], [-1, -1], [0, 2], [3, 5], [-1, -1]]
    assert (bare[0].null_position, bare[0].begin, bare[0].end) == (4, 0, 5)
    (framed,), _ = windows_of(template_tokenizer(), ("w1", "w3"))
    assert ids_of(framed) == [[CLS, W + 1, EOS, W + 3, EOS]]
    assert framed[0].inputs["token_type_ids"] == [0, 0, 0, 1, 1]
    assert framed[0].null_position == 0


def test_a_long_context_becomes_windows_that_overlap():
    context = "w10 w11 w12 w13 w14 w15 w16"
    (windows,), num_cut = windows_of(plain_tokenizer(), ("w1", context), max_length=6, overlap=1)
    assert ids_of(windows) == [
        [W + 1, W + 10, W + 11, W + 12, W + 13, EOS],
        [W + 1, W + 13, W + 14, W + 15, W + 16, EOS],
    ]
    assert [(window.begin, window.end) for window in windows] == [(0, 15), (12, 27)]
    assert num_cut == 0
    assert [window.span_of(12, 15) for window in windows] == [(4, 4), (1, 1)]
    assert [window.span_of(8, 19) for window in windows] == [None, None], "no window holds the whole of it"


def test_the_overlap_is_at_most_half_of_the_room():
    context = " ".join(f"w{number}" for number in range(20))
    (windows,), _ = windows_of(template_tokenizer(), ("w1", context), max_length=8, overlap=128)
    assert ids_of(windows)[1][3:7] == [W + 2, W + 3, W + 4, W + 5]


def test_a_long_question_loses_its_end():
    pairs = [(" ".join(["w1"] * 40), "w3 w4"), ("w2", "w5")]
    (first, second), num_cut = windows_of(plain_tokenizer(), *pairs, max_length=9)
    assert ids_of(first) == [[*[W + 1] * 4, W + 3, W + 4, EOS]]
    assert ids_of(second) == [[W + 2, W + 5, EOS]]
    assert num_cut == 1


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("max_length", [14, 200])
def test_offsets_lead_back_to_the_characters(name, max_length):
    """Every character that is no blank, in every window that covers it."""
    (windows,), _ = windows_of(TOKENIZERS[name](), ("w1", CONTEXT), max_length=max_length, overlap=3)
    found = set()
    for index, letter in enumerate(CONTEXT):
        for window in windows if letter.strip() else ():
            span = window.span_of(index, index + 1)
            if span is None:
                assert not window.begin <= index < window.end
                continue
            begin, end = window.offsets[span[0], 0], window.offsets[span[1], 1]
            assert letter in CONTEXT[begin:end].strip()
            if name.startswith("bytes"):
                assert len(CONTEXT[begin:end].strip()) <= 2
            found.add(index)
    assert found == {index for index, letter in enumerate(CONTEXT) if letter.strip()}


def test_a_line_break_between_the_texts_is_neither_the_contexts_nor_the_null_position():
    tokenizer = TOKENIZERS["bytes"]()
    (windows,), _ = windows_of(tokenizer, ("w", "xy"))
    assert tokenizer.convert_ids_to_tokens(ids_of(windows)[0]) == ["w", "Ċ", "x", "y", "<eos>"]
    assert windows[0].offsets.tolist() == [[-1, -1], [-1, -1], [0, 1], [1, 2], [-1, -1]]
    assert windows[0].null_position == 4


def test_no_room_and_no_offsets_are_refused():
    with pytest.raises(UserError, match=r"max_length = 4 leaves no room .* at least 5\."):
        windows_of(template_tokenizer(), ("w1", "w2"), max_length=4)
    (windows,), _ = windows_of(template_tokenizer(), ("w1 w2", "w3 w4"), max_length=5)
    assert ids_of(windows) == [[CLS, W + 1, EOS, W + 3, EOS], [CLS, W + 1, EOS, W + 4, EOS]]
    with pytest.raises(UserError, match=r"the tokenizer of model \(SimpleNamespace\) does not tell which characters"):
        windows_of(types.SimpleNamespace(is_fast=False), ("w1", "w2"))


def test_pairs_in_large_numbers_keep_their_order():
    pairs = [(f"w{number % 7}", " ".join(["w9"] * (1 + number % 5))) for number in range(1003)]
    windows, _ = windows_of(plain_tokenizer(), *pairs, max_length=5, overlap=0)
    assert all(ids_of(group)[0][0] == W + number % 7 for number, group in enumerate(windows))
    assert [len(group) for group in windows[-6:]] == [1, 2, 2, 1, 1, 1], "3, 4, 5, 1, 2, 3 words, 3 to a window"


@pytest.mark.parametrize("answer", ["nai\u0308ve", "cafe\u0301", "deja\u0300 vu\u0302", "cafe"])
@pytest.mark.parametrize("max_length", [100, 18])
def test_marks_that_a_tokenizer_leaves_out_belong_to_the_answer(answer, max_length):
    """The right answer comes back whole from every window that has it."""
    context = f"nai\u0308ve {answer} , {answer} - w1 {answer}"
    tokenizer = byte_level(trims=True, template=False)
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    (windows,), _ = windows_of(tokenizer, ("x", context), max_length=max_length, overlap=9)
    starts = [place for place in range(len(context)) if context.startswith(answer, place)]
    found = []
    for window, start in itertools.product(windows, starts):
        if (span := window.span_of(start, start + len(answer))) is not None:
            logits = np.zeros((len(window.offsets), 2), np.float32)
            logits[span[0], 0] = logits[span[1], 1] = 1
            found.append(best_span(window, context, logits, max_length=50)[0])
    assert set(found) == {answer}
    assert len(found) >= len(starts)
