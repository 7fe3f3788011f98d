"""Another tokenizer for an existing model (`--from-hf MODEL OUT --tokenizer NEW`): rows by hand, logits by stock."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tokenization
from tests.support.hf_decoders import TOKENS, edit_json, save_decoder, save_tokenizer
from tests.support.text import sample_documents
from tokenization import train_bpe
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import from_hf, to_hf
from toolkit.conversion.vocabulary import change_vocabulary
from toolkit.core.errors import CheckpointError
from toolkit.model.parameters import EMBEDDING, HEAD, HEAD_BIAS
from toolkit.testing.tolerances import HUGGING_FACE_LOGITS


@pytest.fixture
def new_tokenizer(tmp_path: Path) -> Path:
    """A smaller byte-level BPE: `<|endoftext|>`, `<|pad|>`, `<|mask|>`, 256 bytes and 61 merges of other text."""
    texts = [document[::-1] for document in sample_documents(100)]
    return train_bpe([*texts, *sample_documents(50)], vocabulary_size=320, folder=tmp_path / "new")


@pytest.mark.parametrize("family", ["llama 3", "smollm", "qwen3", "modernbert", "modernbert-decoder"])
def test_rows_are_kept_averaged_and_mapped_by_role(family: str, new_tokenizer: Path, tmp_path: Path) -> None:
    """Those of the embedding, of a head of its own, and of its bias."""
    save_decoder(family, tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "plain")
    plain = open_checkpoint(tmp_path / "plain")

    report = from_hf(tmp_path / "model", tmp_path / "out", tokenizer=new_tokenizer)

    checkpoint = open_checkpoint(tmp_path / "out")
    old, new = AutoTokenizer.from_pretrained(tmp_path / "model"), AutoTokenizer.from_pretrained(new_tokenizer)
    assert report.settings.vocab_size == len(new) == 320
    changed = {EMBEDDING, HEAD, HEAD_BIAS} & set(checkpoint.names)
    for name in changed:
        before, after = plain.weight(name), checkpoint.weight(name)
        assert after.shape == (320, *before.shape[1:])
        num_averaged = 0
        for text, token_id in new.get_vocab().items():
            if text in ("<|pad|>", "<|mask|>"):
                expected = before[:TOKENS].mean(0)
            elif text == "<|endoftext|>":
                expected = before[old.eos_token_id]
            elif text in old.get_vocab():
                assert torch.equal(after[token_id], before[old.get_vocab()[text]])
                continue
            else:
                content = new.convert_tokens_to_string([text])
                if "\ufffd" in content:  # half a character, which transformers cannot encode
                    continue
                num_averaged += 1
                expected = before[old(content, add_special_tokens=False)["input_ids"]].mean(0)
            torch.testing.assert_close(after[token_id], expected, rtol=1e-5, atol=1e-6)
        assert num_averaged > 20
    others = set(checkpoint.names) - changed
    assert all(torch.equal(checkpoint.weight(name), plain.weight(name)) for name in others)
    assert report.max_difference <= HUGGING_FACE_LOGITS
    assert tokenization.load(tmp_path / "out").fingerprint == tokenization.load(new_tokenizer).fingerprint


def test_the_numbers_are_told_and_recorded(new_tokenizer: Path, tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model")
    report = from_hf(tmp_path / "model", tmp_path / "out", tokenizer=new_tokenizer)
    old, new = (AutoTokenizer.from_pretrained(folder).get_vocab() for folder in (tmp_path / "model", new_tokenizer))
    kept = len(old.keys() & new.keys())
    assert 256 < kept < 300
    (told,) = (change for change in report.changes if change.startswith("vocabulary"))
    # Every byte is in both, so that every new piece is spelled; eos is the only role of the new tokenizer in the old.
    assert told.startswith(f"vocabulary: 320 entries in place of {TOKENS}; rows: {kept} kept, {317 - kept} averaged")
    assert told.endswith("1 by role or name, 2 the mean of all")
    origin = open_checkpoint(tmp_path / "out").manifest.origin
    assert (origin["model"], origin["tokenizer"]) == ("model", "new")
    assert origin["rows"] == told.split("rows: ")[1]
    assert "with the tokenizer new" in open_checkpoint(tmp_path / "out").manifest.first_weights


@pytest.mark.parametrize("family", ["llama 3", "modernbert-decoder"])
def test_exports_load_with_the_new_tokenizer(family: str, new_tokenizer: Path, tmp_path: Path) -> None:
    """What both vocabularies spell alike has the logits of the model before, at the pieces that both have."""
    model = save_decoder(family, tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "out", tokenizer=new_tokenizer)
    for form in ("bidirectional", "causal"):
        assert to_hf(tmp_path / "out", tmp_path / form, form=form).max_difference <= HUGGING_FACE_LOGITS
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "causal").eval()
    old, new = (AutoTokenizer.from_pretrained(folder).get_vocab() for folder in (tmp_path / "model", new_tokenizer))
    shared = sorted(old.keys() & new.keys())
    theirs, ours = (torch.tensor([vocabulary[text] for text in shared]) for vocabulary in (old, new))
    picks = torch.randperm(len(shared), generator=torch.Generator().manual_seed(1))[:60]
    with torch.no_grad():
        before = model(input_ids=theirs[picks][None]).logits[0][:, theirs]
        after = exported(input_ids=ours[picks][None]).logits[0][:, ours]
    assert before.abs().max() > 1
    torch.testing.assert_close(after, before, rtol=0, atol=HUGGING_FACE_LOGITS)


def test_the_models_own_tokenizer_changes_no_row(tmp_path: Path) -> None:
    model = save_decoder("qwen3", tmp_path / "model")
    save_tokenizer(tmp_path / "model", specials=("<s>", "</s>", "<hide>"), mask_token="<hide>")
    from_hf(tmp_path / "model", tmp_path / "out", tokenizer=tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "out")
    for name in (EMBEDDING, HEAD):
        assert torch.equal(checkpoint.weight(name)[:TOKENS], model.get_parameter(name).detach()[:TOKENS])


def test_a_mask_that_was_trained_is_mapped_and_one_that_was_found_is_not(tmp_path: Path) -> None:
    specials = ("<s>", "</s>", "<|reserved_special_token_0|>")
    save_tokenizer(tmp_path / "named", specials=specials, mask_token=specials[2])
    save_tokenizer(tmp_path / "found", specials=specials)
    save_tokenizer(tmp_path / "new", specials=("</s>", "<s>", "[MASK]"), mask_token="[MASK]")
    for name, expected in (("named", (2,)), ("found", ())):
        old = tokenization.load(tmp_path / name)
        assert old.mask.id == 2
        change = change_vocabulary(old, tokenization.load(tmp_path / "new"))
        assert change.sources[2] == expected
        assert (change.sources[0], change.sources[1]) == ((1,), (0,))


def test_bert_names_what_begins_and_ends_a_text(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "own")
    save_tokenizer(tmp_path / "new", specials=("<s>", "[SEP]", "[CLS]", "[PAD]"))
    edit_json(
        tmp_path / "new" / "tokenizer_config.json",
        without=("bos_token", "eos_token"),
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
    )
    old, new = (tokenization.load(tmp_path / name) for name in ("own", "new"))
    assert new.role_ids.keys() == {"cls", "sep", "pad", "mask"}
    change = change_vocabulary(old, new)
    assert [change.sources[token_id] for token_id in range(4)] == [(0,), (1,), (0,), ()]


def test_a_token_with_several_roles_ends_texts_first(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "own")
    save_tokenizer(tmp_path / "new", specials=("<s>", "<end>"))
    edit_json(tmp_path / "new" / "tokenizer_config.json", bos_token="<end>", eos_token="<end>", pad_token="<end>")
    old, new = (tokenization.load(tmp_path / name) for name in ("own", "new"))
    change = change_vocabulary(old, new)
    assert change.sources[new.role_ids["bos"]] == (1,)


def test_the_policy_of_the_mask_is_for_the_new_tokenizer(new_tokenizer: Path, tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model")
    report = from_hf(tmp_path / "model", tmp_path / "out", tokenizer=new_tokenizer, mask_token="mean")
    assert report.settings.vocab_size == 384
    assert open_checkpoint(tmp_path / "out").manifest.vocabulary.mask_id == 320
    assert any(change.startswith("mask: <mask> (id 320), appended") for change in report.changes)


def test_what_cannot_be_is_refused(new_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_decoder("llama 3", tmp_path / "model")
    # A vocabulary of other letters.
    new = tokenization.load(new_tokenizer)
    monkeypatch.setattr("toolkit.conversion.vocabulary.Pieces.find", lambda *_: None)
    with pytest.raises(CheckpointError, match="has none of the 378 pieces of the model's own"):
        change_vocabulary(tokenization.load(tmp_path / "model"), new)


@pytest.mark.parametrize("name", ["gpt2", "llama2/tokenizer.model", "bert-base-uncased"])
def test_real_vocabularies(shared_data: Path, tmp_path: Path, name: str) -> None:
    """A toy model of OLMo's vocabulary gets three others: the text of a sentence keeps its rows, in the main."""
    model = save_decoder("smollm", tmp_path / "model", vocab_size=50_281, hidden_size=16, intermediate_size=32)
    for path in (tmp_path / "model").glob("*token*"):
        path.unlink()
    old = tokenization.load(shared_data / "tokenizers" / "gpt-neox-olmo", eod="<|endoftext|>")
    old.save(tmp_path / "model")

    report = from_hf(tmp_path / "model", tmp_path / "out", tokenizer=shared_data / "tokenizers" / name)

    kept = {"gpt2": 36_937, "llama2/tokenizer.model": 21_924, "bert-base-uncased": 17_221}[name]
    assert any(f"rows: {kept:,} kept" in change for change in report.changes)
    checkpoint = open_checkpoint(tmp_path / "out")
    after, before = checkpoint.weight(EMBEDDING), model.get_parameter(EMBEDDING).detach()
    new = tokenization.load(shared_data / "tokenizers" / name)
    text = "the river and the red door"
    means = [
        rows[new_or_old.backend.encode(text, add_special_tokens=False).ids].mean(0)
        for rows, new_or_old in ((after, new), (before, old))
    ]
    # Of 6 words, at most the first is spelled differently: with a blank before it, or without.
    assert torch.nn.functional.cosine_similarity(*means, dim=0) > 0.8
