import hashlib
import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

import tokenization
from tests.support.text import sample_documents
from tokenization import TokenizationError, train_bpe
from tokenization.backend import byte_level_bytes, fingerprint

END, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_training_again_gives_the_same_files_which_spell_any_text(trained, tmp_path):
    train_bpe(sample_documents(200), vocabulary_size=384, folder=tmp_path / "again")

    assert contents(tmp_path / "again") == contents(trained)
    tokenizer = tokenization.load(trained)
    text = "".join(map(chr, [*range(1, 600), 0x4E2D, 0x1F642]))
    ids, _ = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text + END


def test_a_vocabulary_below_the_bytes_is_refused(tmp_path):
    with pytest.raises(TokenizationError, match="need 259"):
        train_bpe(["a"], vocabulary_size=258, folder=tmp_path)


def saved(folder, tmp_path, **choices):
    tokenizer = tokenization.load(folder, **choices)
    tokenizer.save(tmp_path / "saved")
    return tokenizer, tmp_path / "saved"


@pytest.mark.parametrize(
    ("choices", "mask_id"),
    [
        ({}, 384),
        ({"mask_token": "id:2"}, 2),
        ({"mask_token": "token:Ġthe"}, None),
    ],
)
def test_a_saved_folder_decides_the_same_again(make_folder, tmp_path, choices, mask_id):
    tokenizer, folder = saved(make_folder(bos=PAD), tmp_path, eod=END, **choices)
    again = tokenization.load(folder)

    assert again.fingerprint == tokenizer.fingerprint
    assert again.special_ids == tokenizer.special_ids
    assert again.all_special_ids == tokenizer.all_special_ids
    assert again.vocabulary_size == tokenizer.vocabulary_size
    assert again.mask.id == (mask_id if mask_id is not None else tokenizer.mask.id)
    assert again.eod_id == 0
    tokenizer.save(tmp_path / "twice")
    again.save(tmp_path / "thrice")
    assert contents(tmp_path / "twice") == contents(folder) == contents(tmp_path / "thrice")


def test_saving_keeps_further_special_tokens(make_folder, tmp_path):
    config = {"eos_token": END, "cls_token": PAD, "additional_special_tokens": ["ing"]}
    tokenizer, folder = saved(make_folder(config=config), tmp_path)
    ing = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("ing")

    assert ing in tokenizer.all_special_ids
    written = json.loads((folder / "tokenizer_config.json").read_text())
    assert (written["cls_token"], written["additional_special_tokens"]) == (PAD, ["ing"])
    # transformers 4.57 fails on a list under the name of transformers 5, with every tokenizer that has such tokens.
    assert "extra_special_tokens" not in written
    assert ing in AutoTokenizer.from_pretrained(folder).all_special_ids


def test_byte_level_tokens_stand_for_bytes():
    assert byte_level_bytes("Ġthe") == b" the"
    assert byte_level_bytes("Ċ") == b"\n"
    assert byte_level_bytes("Ã©") == "é".encode()
    assert byte_level_bytes("日") == "日".encode()


def test_the_fingerprint_is_the_hash_it_says():
    content = (
        b"\x00\x00\x00\x00\x02\x00\x00\x00 a" + b"\x01\x00\x00\x00\x01\x00\x00\x00b" + b"\neos=1\npad=None\nspecial=[1]"
    )

    found = fingerprint({1: b"b", 0: b" a"}, {"pad": None, "eos": 1}, special_ids=[1])

    assert found == hashlib.sha256(content).hexdigest()


def test_the_fingerprint_does_not_depend_on_how_a_vocabulary_is_spelled(tmp_path):
    """The same ids and bytes, once in byte-level spelling, once plain."""
    byte_level = Tokenizer(models.BPE(vocab={"Ġ": 0, "a": 1, "Ġa": 2}, merges=[("Ġ", "a")]))
    byte_level.pre_tokenizer, byte_level.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    plain = Tokenizer(models.WordLevel({" ": 0, "a": 1, " a": 2}, unk_token="a"))
    found = []
    for name, backend in (("byte-level", byte_level), ("plain", plain)):
        backend.save(str(tmp_path / f"{name}.json"))
        found.append(tokenization.load(tmp_path / f"{name}.json").fingerprint)

    assert found[0] == found[1]


def test_the_fingerprint_tells_special_ids_apart(make_folder):
    found = {
        tokenization.load(make_folder(str(number), config=config)).fingerprint
        for number, config in enumerate(
            [{"mask_token": MASK}, {"mask_token": MASK, "eos_token": END}, {"mask_token": PAD, "eos_token": END}]
        )
    }

    assert len(found) == 3


def test_what_decides_the_ids_names_the_library_too(ranks_file, tmp_path):
    """The same vocabulary, once encoded by tiktoken and once by `tokenizers`."""
    ranks = tokenization.load(ranks_file)
    ranks.save(tmp_path)
    again = tokenization.load(tmp_path)

    assert again.files == ranks.files
    assert again.source_digest != ranks.source_digest
    assert ranks.source_digest == tokenization.load(ranks_file).source_digest
