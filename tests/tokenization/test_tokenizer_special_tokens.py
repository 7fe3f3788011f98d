import pytest

import tokenization
from tokenization import MaskOrigin, TokenizationError, UnsupportedTokenizerError

END, PAD, MASK, RESERVED = "<|endoftext|>", "<|pad|>", "<|mask|>", "<|reserved_special_token_"


def test_names_come_from_the_files_beside_it(trained):
    tokenizer = tokenization.load(trained)

    assert tokenizer.special_ids == {"bos": None, "eos": 0, "pad": 1, "mask": 2}
    assert (tokenizer.eod_id, tokenizer.eod_text) == (0, END)
    assert tokenizer.all_special_ids == (0, 1, 2)
    assert tokenizer.vocabulary_size == tokenizer.encoded_vocabulary_size == 384
    assert tokenizer.mask.origin is MaskOrigin.NAMED
    assert tokenization.load(trained / "tokenizer.json").special_ids == tokenization.load(trained).special_ids


def test_files_beside_another_name_are_not_its_own(trained, tmp_path):
    for file in trained.iterdir():
        name = "other.json" if file.name == "tokenizer.json" else file.name
        (tmp_path / name).write_bytes(file.read_bytes())

    ids = {"bos": None, "eos": None, "pad": None, "mask": 384}
    assert tokenization.load(tmp_path / "other.json").special_ids == ids


def test_nothing_is_guessed_from_texts_that_look_like_names(make_folder):
    tokenizer = tokenization.load(make_folder())

    assert tokenizer.eod_id is None
    assert tokenizer.special_ids["pad"] is None
    assert tokenizer.mask.origin is MaskOrigin.APPENDED
    assert tokenizer.mask.passed_over == MASK
    with pytest.raises(TokenizationError, match=r"--eod TOKEN.*<\|endoftext\|>") as failure:
        tokenizer.encode_batch(["text"])
    assert "tokenizer_config.json" in str(failure.value)


def test_sep_ends_a_document_where_there_is_no_eos(make_folder):
    tokenizer = tokenization.load(make_folder(config={"sep_token": PAD}))

    assert tokenizer.eod_id == 1
    assert tokenizer.special_ids["eos"] is None


def test_a_given_end_wins_and_is_named_only_where_no_eos_is(make_folder):
    unnamed = tokenization.load(make_folder("unnamed"), eod=PAD)
    named = tokenization.load(make_folder("named", config={"eos_token": END}), eod=PAD)

    assert (unnamed.eod_id, unnamed.special_ids["eos"]) == (1, 1)
    assert (named.eod_id, named.special_ids["eos"]) == (1, 0)


@pytest.mark.parametrize(
    ("config", "special_map", "eos"),
    [
        ({"eos_token": END}, None, 0),
        ({"eos_token": {"content": END, "lstrip": False}}, None, 0),
        (None, {"eos_token": PAD}, 1),
        ({"eos_token": END}, {"eos_token": PAD}, 1),
        ({"eos_token": END, "added_tokens_decoder": {}}, {"eos_token": PAD}, 0),
        ({"eos_token": None}, {"eos_token": None}, None),
    ],
)
def test_the_two_files_rank_as_in_transformers(make_folder, config, special_map, eos):
    assert tokenization.load(make_folder(config=config, special_map=special_map)).special_ids["eos"] == eos


@pytest.mark.parametrize(
    ("made", "given", "found", "size"),
    [
        # The first reserved slot by id; one with another role is passed over.
        ({"extra_tokens": (f"{RESERVED}7|>", f"{RESERVED}0|>")}, {}, (384, f"{RESERVED}7|>", MaskOrigin.RESERVED), 386),
        (
            {"config": {"pad_token": "[unused0]"}, "extra_tokens": ("[unused0]", "[unused1]")},
            {},
            (385, "[unused1]", MaskOrigin.RESERVED),
            386,
        ),
        # One that is appended, under its name where it has one.
        ({}, {}, (384, "<mask>", MaskOrigin.APPENDED), 385),
        ({"config": {"mask_token": "<hidden>"}}, {}, (384, "<hidden>", MaskOrigin.APPENDED), 385),
        ({}, {"mask_token": f"token:{MASK}"}, (2, MASK, MaskOrigin.CHOSEN), 384),
        ({}, {"mask_token": "id:2"}, (2, MASK, MaskOrigin.CHOSEN), 384),
    ],
)
def test_the_mask_is_reserved_appended_or_chosen(make_folder, made, given, found, size):
    tokenizer = tokenization.load(make_folder(**made), eod=END, **given)
    mask = tokenizer.mask
    assert ((mask.id, mask.text, mask.origin), tokenizer.vocabulary_size) == (found, size)
    if mask.origin is MaskOrigin.APPENDED:
        # Which grows the vocabulary, but not the one that is encoded with.
        assert tokenizer.encoded_vocabulary_size == 384
        assert 384 not in tokenizer.encode_batch([f"a {mask.text} b"])[0]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("token:<nowhere>", "not in the vocabulary"),
        ("id:-1", "expected auto, reserved, append, token:TEXT or id:N"),
        ("id:x", "expected auto"),
        ("token:", "expected auto"),
        ("id:0", "it is the tokenizer's eos token"),
        (f"token:{PAD}", "it is the tokenizer's pad token"),
    ],
)
def test_a_mask_that_cannot_be_is_refused(trained, policy, message):
    with pytest.raises(TokenizationError, match=message):
        tokenization.load(trained, mask_token=policy)


def test_the_given_end_is_never_the_mask(trained, make_folder):
    """Although the files name another eos."""
    slots = f"{RESERVED}0|>", f"{RESERVED}1|>"
    folder = make_folder(config={"eos_token": END}, extra_tokens=slots)
    tokenizer = tokenization.load(folder, eod=slots[0])

    assert (tokenizer.eod_id, tokenizer.mask.text, tokenizer.special_ids["eos"]) == (384, slots[1], 0)
    with pytest.raises(TokenizationError, match="cannot be the mask: it is the tokenizer's end-of-document token"):
        tokenization.load(folder, eod=slots[0], mask_token=f"token:{slots[0]}")
    with pytest.raises(TokenizationError, match="cannot end documents: it is the mask token, named by the tokenizer"):
        tokenization.load(trained, eod=MASK)


@pytest.mark.parametrize("name", ["tokenizer.model", "ranks.tiktoken", "tokenizer"])
def test_a_file_of_no_known_kind_is_named_with_how_it_begins(tmp_path, name):
    (tmp_path / name).write_text("x = 3")

    with pytest.raises(TokenizationError, match=r"not a known tokenizer format.*It begins with 'x = 3'"):
        tokenization.load(tmp_path / name)


def test_a_word_piece_list_alone_does_not_say_enough(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n")

    for spec in (tmp_path, tmp_path / "vocab.txt"):
        with pytest.raises(UnsupportedTokenizerError, match=r"Give the tokenizer\.json"):
            tokenization.load(spec)


@pytest.mark.parametrize("name", ["./nowhere", "a/b/c", "nowhere.json", "a\0b", "with space", "../up"])
def test_what_can_be_no_repository_is_not_looked_for_on_the_hub(name):
    with pytest.raises(TokenizationError, match=r"no such file or folder.*cl100k_base, llama3"):
        tokenization.load(name)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", b"\xff\xfe", "not UTF-8"),
        ("tokenizer.json", b'{"a": 1}', "is not a Hugging Face tokenizer.json that can be read"),
        ("tokenizer_config.json", b"{", "cannot be read as JSON"),
        ("special_tokens_map.json", b"[]", "is invalid: expected a JSON object"),
        ("tokenizer_config.json", b'{"eos_token": "\\ud800"}', "which is not valid text"),
    ],
)
def test_a_damaged_file_is_named(make_folder, file, content, message):
    folder = make_folder()
    (folder / file).write_bytes(content)

    with pytest.raises(TokenizationError, match=message) as failure:
        tokenization.load(folder)
    assert str(folder / file) in str(failure.value)


def test_a_folder_without_a_tokenizer_says_what_it_holds(tmp_path):
    (tmp_path / "words.txt").write_text("x")

    with pytest.raises(TokenizationError, match=r"has no tokenizer\.json.*it holds: words\.txt"):
        tokenization.load(tmp_path)
