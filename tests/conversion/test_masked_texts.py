"""The mask of an exported encoder stands where a word's tokens stood in training, in every kind of tokenizer."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

import tokenization
from tests.support.subword_tokenizers import KINDS, subword_tokenizer
from tests.support.text import sample_documents, tiny_tokenizer
from tokenization import EncodingRules
from tokenization.comparison import PROBES
from toolkit.conversion import to_hf
from toolkit.conversion.masked_texts import with_mask_as_trained
from toolkit.core.types import Vocabulary

# A word whose tokens stand apart in each vocabulary, and places for it.
WORD = "river"
PLACES = ("The old {}.", "Every {} was in the north.", "{} is here.", "They ({}) left.", "  The {}  door ", "my {}")
MODELS: dict[str, dict[str, object]] = {
    "BPE as Llama 2": {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "BPE": {"model_type": "bpe"},
    "BPE without a blank in front": {"model_type": "bpe", "add_dummy_prefix": False},
    "Unigram": {"model_type": "unigram"},
    "Unigram, case folded": {"model_type": "unigram", "normalization_rule_name": "nfkc_cf"},
}


@pytest.fixture(params=[*MODELS, *KINDS, "byte-level BPE of ours"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A saved tokenizer, as a corpus and a checkpoint have it."""
    place = tmp_path / "source"
    place.mkdir()
    if request.param in MODELS:
        (place / "text").write_text("\n".join(sample_documents(200)))
        sentencepiece.SentencePieceTrainer.train(
            input=str(place / "text"),
            model_prefix=str(place / "tokenizer"),
            vocab_size=150 if MODELS[request.param]["model_type"] == "unigram" else 300,
            hard_vocab_limit=False,
            minloglevel=2,
            **MODELS[request.param],
        )
        source = place / "tokenizer.model"
    elif request.param in KINDS:
        subword_tokenizer(request.param).save_pretrained(place)
        source = place
    else:
        source = tiny_tokenizer(place)
    tokenization.load(source, rules=EncodingRules(add_eod=False)).save(tmp_path / "saved")
    return tmp_path / "saved"


def _content(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    return content


def test_the_mask_stands_for_the_tokens_of_a_word(folder: Path, tmp_path: Path) -> None:
    tokenizer = tokenization.load(folder)
    trained, mask = Tokenizer.from_file(str(folder / "tokenizer.json")), tokenizer.mask
    content, difference = with_mask_as_trained(_content(folder), mask.id)
    assert difference is None
    shutil.copytree(folder, tmp_path / "exported")
    (tmp_path / "exported" / "tokenizer.json").write_text(json.dumps(content))

    exported = AutoTokenizer.from_pretrained(tmp_path / "exported")
    for place in PLACES:
        encoding = trained.encode(place.format(WORD), add_special_tokens=False)
        start = place.index("{}")
        expected: list[int] = []
        for token_id, (first, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            is_of_word = first < start + len(WORD) and stop > start
            is_before = stop == start and place[:start].endswith(" ") and first == start - 1  # a blank by itself
            if not (is_of_word or is_before):
                expected.append(token_id)
            elif mask.id not in expected:
                expected.append(mask.id)
        assert exported(place.format(mask.text), add_special_tokens=False).input_ids == expected, place
    for text in (*PROBES, *sample_documents(20)):
        assert exported(text, add_special_tokens=False).input_ids == trained.encode(text, add_special_tokens=False).ids


def test_what_stays_different_is_said() -> None:
    """Words are cut at blanks before each gets a blank in front: a mark behind a word has none, one by itself does."""
    words = (
        "The", "cat", "sat", "on", "the", "mat.", "mat", "is", "here.", "in", "city", "was", "north.", "a", "▁", ".",
    )  # fmt: skip
    vocabulary = {
        text: number for number, text in enumerate(["<mask>", "<unk>", *words, *(f"▁{word}" for word in words)])
    }
    backend = Tokenizer(models.Unigram([(text, -1.0) for text in vocabulary], unk_id=1))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    backend.add_special_tokens(["<mask>"])
    before = json.loads(backend.to_str())
    content, difference = with_mask_as_trained(before, 0)
    assert content == before
    assert difference is not None
    assert "'The cat sat on the <mask>.' as ▁The ▁cat ▁sat ▁on ▁the <mask> ▁." in difference


def test_an_export_of_a_sentencepiece_vocabulary_is_right_and_a_decoder_unchanged(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("\n".join(sample_documents(200)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=300, model_type="bpe", minloglevel=2
    )
    tokenizer = tokenization.load(tmp_path / "m.model")
    tokenizer.save(tmp_path / "saved")
    vocabulary = Vocabulary(
        size=tokenizer.vocabulary_size, mask_id=tokenizer.mask.id, pad_id=2, bos_id=1, eos_id=2, special_ids=(0, 1, 2)
    )
    checkpoint = make_checkpoint(tokenizer=tmp_path / "saved", vocabulary=vocabulary)
    report = to_hf(checkpoint, tmp_path / "encoder")
    to_hf(checkpoint, tmp_path / "decoder", form="causal")
    assert not [note for note in report.notes if "fill-mask" in note]
    encoder = AutoTokenizer.from_pretrained(tmp_path / "encoder")
    tokens = encoder.convert_ids_to_tokens(encoder("The old <mask>.").input_ids)
    assert tokens == ["▁The", "▁old", "<mask>", ".", "</s>"]
    assert _content(tmp_path / "decoder") == _content(tmp_path / "saved")
