"""Pieces by what they stand for, in each way of writing them."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

import tokenization
from tests.support.subword_tokenizers import subword_tokenizer
from tests.support.text import tiny_tokenizer
from tokenization.pieces import Piece, Pieces


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pieces]:
    found = {}
    for kind in ("byte-level BPE", "SentencePiece", "WordPiece"):
        folder = tmp_path_factory.mktemp("tokenizer")
        subword_tokenizer(kind).save_pretrained(folder)
        found[kind] = Pieces(tokenization.load(folder))
    return found


@pytest.mark.parametrize(
    ("kind", "written", "content"),
    [
        ("byte-level BPE", "Ġmiller", b" miller"),
        ("byte-level BPE", "in", b"in"),
        ("SentencePiece", "▁t", b" t"),
        ("SentencePiece", "s", b"s"),
        ("WordPiece", "miller", b" miller"),
        ("WordPiece", "##s", b"s"),
        ("WordPiece", ".", b"."),
    ],
)
def test_a_piece_is_the_bytes_of_its_text(pieces: dict[str, Pieces], kind: str, written: str, content: bytes) -> None:
    token_id = pieces[kind]._backend.token_to_id(written)
    assert token_id is not None
    assert pieces[kind].by_id[token_id] == Piece(content, is_continued=written.startswith("##"))


@pytest.mark.parametrize("kind", ["byte-level BPE", "SentencePiece", "WordPiece"])
def test_every_piece_is_found_and_spelled_by_itself_and_special_tokens_are_none(
    pieces: dict[str, Pieces], kind: str
) -> None:
    own = pieces[kind]
    assert len(own.by_id) >= 48
    for token_id, piece in own.by_id.items():
        same = own.find(piece)
        assert same is not None
        assert own.by_id[same] == piece
        if kind != "WordPiece":  # which spells whole words alone
            assert b"".join(own.by_id[part].content for part in own.spell(piece.content)) == piece.content
        if kind == "byte-level BPE":
            assert own.spell(piece.content) == [token_id]
    assert not {0, 1, 2} & own.by_id.keys()


@pytest.mark.parametrize("texts", [["§", "##§"], ["##§", "§"]])
def test_a_mark_and_its_continuation_keep_their_own_rows(tmp_path: Path, texts: list[str]) -> None:
    """Both stand for the same bytes, since no blank is thought before a mark."""
    names = ["[UNK]", "[PAD]", "a", *texts]
    backend = Tokenizer(models.WordPiece({text: number for number, text in enumerate(names)}, unk_token="[UNK]"))
    backend.save(str(tmp_path / "tokenizer.json"))
    own = Pieces(tokenization.load(tmp_path))
    assert {token_id: own.find(piece) for token_id, piece in own.by_id.items()} == {
        number: number for number in own.by_id
    }
    # From a vocabulary that knows no continuations.
    assert own.find(Piece("§".encode())) == names.index("§")


def test_other_text_is_spelled_in_parts_and_half_a_character_in_bytes(pieces: dict[str, Pieces]) -> None:
    for kind in ("byte-level BPE", "SentencePiece"):
        own = pieces[kind]
        ids = own.spell(b" millers paint")
        assert len(ids) > 1
        assert b"".join(own.by_id[token_id].content for token_id in ids) == b" millers paint"
    half = "é".encode()[:1]
    own = pieces["byte-level BPE"]
    assert [own.by_id[token_id].content for token_id in own.spell(half)] == [half]
    assert pieces["SentencePiece"].spell(half) == []
    assert pieces["SentencePiece"].spell("日本".encode()) == []


def test_the_fallback_for_a_byte_is_not_the_piece_for_a_character(shared_data: Path) -> None:
    """Llama 2's vocabulary has both `<0x41>` and `A`, and `<0x0A>` alone for the end of a line."""
    tokenizer = tokenization.load(shared_data / "tokenizers" / "llama2" / "tokenizer.model")
    own, ids = Pieces(tokenizer), tokenizer.backend.get_vocab()
    assert own.by_id[ids["<0x41>"]] == Piece(b"A", is_byte=True)
    assert (own.find(Piece(b"A")), own.find(Piece(b"A", is_byte=True))) == (ids["A"], ids["<0x41>"])
    assert own.find(Piece(b"\n")) == ids["<0x0A>"]
    assert own.spell("é".encode()[:1]) == [ids["<0xC3>"]]
    assert own.spell(b" Hello") == [ids["▁Hello"]]


def test_real_vocabularies_share_pieces(shared_data: Path) -> None:
    tokenizers = shared_data / "tokenizers"
    new, *olds = (
        Pieces(tokenization.load(tokenizers / name))
        for name in ("gpt2", "gpt-neox-olmo", "bert-base-uncased", "llama2/tokenizer.model")
    )
    shared = [sum(old.find(piece) is not None for piece in new.by_id.values()) for old in olds]
    # The first: the keys of both files without OLMo's special tokens, counted apart from this code.
    assert shared == [36_937, 18_099, 18_207]


def test_a_tiny_vocabulary_spells_any_text(tmp_path: Path) -> None:
    own = Pieces(tokenization.load(tiny_tokenizer(tmp_path / "tokenizer")))
    content = "Grüße, 世界 \n\t\x00".encode()
    assert b"".join(own.by_id[token_id].content for token_id in own.spell(content)) == content
