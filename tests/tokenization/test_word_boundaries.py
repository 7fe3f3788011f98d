"""Words told by ids, against the offsets of `tokenizers`: five kinds of tokenizer, eleven scripts."""

import base64
import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import tokenization
from tests.support.scripts import mixed_texts
from tokenization import Tokenizer, TokenizerKind, UnsupportedTokenizerError
from tokenization.backend import byte_level_bytes
from tokenization.word_boundaries import WORD_RULE, _is_letter, word_boundaries

KINDS = ("byte-level BPE", "tiktoken", "SentencePiece unigram", "SentencePiece BPE", "WordPiece", "WordPiece uncased")
# Of today's Unicode, by names; the product has code points, and the categories of Unicode 3.2.
_WITHOUT_BLANKS = ("CJK ", "HIRAGANA ", "KATAKANA", "HALFWIDTH KATAKANA", "IDEOGRAPHIC ", "THAI ", "LAO ")


def is_letter(character: str) -> bool:
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    return category[0] in "LMNC" and category != "Cc" and not name.startswith(_WITHOUT_BLANKS)


def parts(left: str, right: str) -> bool:
    return not (is_letter(right) and (is_letter(left) or left == " "))


def first_piece(tokenizer: Tokenizer, token_id: int) -> bytes:
    text = tokenizer.backend.id_to_token(token_id)
    return bytes.fromhex(text[3:5]) if text.startswith("<0x") else byte_level_bytes(text)


def disagreements(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Counts of borders between tokens by what is beside them, and those where ids and offsets say otherwise.

    `whole`: a character of one token on either side; `inside` one character; `piece`: a character in pieces, by what it
    counts as; `differing`: those of `piece` that a whole character would part otherwise.
    """
    begins_V, ends_V = word_boundaries(tokenizer)
    special, counts, found = set(tokenizer.all_special_ids), Counter[str](), list[str]()
    for raw in texts:
        # SentencePiece makes line ends and joiners blanks: what is a word there, the text as it leaves it says.
        is_plain = tokenizer.kind is not TokenizerKind.SENTENCEPIECE
        text = raw if is_plain else tokenizer.backend.normalizer.normalize_str(raw).replace("▁", " ").strip(" ")
        encoding = tokenizer.backend.encode(text, add_special_tokens=False)
        ids, spans = encoding.ids, encoding.offsets
        # An inserted blank in front of the text has the offsets of what is behind it.
        first = int(len(ids) > 1 and spans[0][1] > spans[1][0] and encoding.tokens[0] == "▁")
        pieces = Counter(place for start, stop in spans[first:] for place in range(start, stop))
        if type(tokenizer.backend.model).__name__ == "WordPiece":
            # Characters that it normalises into several, such as Korean syllables, are no bytes.
            pieces.clear()
        for number in range(first, len(ids) - 1):
            (_, stop), (start, _) = spans[number], spans[number + 1]
            if not special.isdisjoint(ids[number : number + 2]):
                continue
            told = bool(begins_V[ids[number + 1]] or ends_V[ids[number]])
            expected = any(parts(left, right) for left, right in pairwise(text[stop - 1 : start + 1]))
            kind = "inside" if start < stop else "whole"
            is_right_split, is_left_split = pieces[start] > 1 and start == stop, start == stop and pieces[stop - 1] > 1
            if is_right_split or is_left_split:
                kind, by_characters, left, right = "piece", expected, text[stop - 1], text[start]
                if is_right_split:
                    size, content = len(right.encode()), first_piece(tokenizer, ids[number + 1])
                    right = (content + b"\xbf" * 3)[:size].decode(errors="surrogateescape")[0]
                is_joined = _is_letter(right) if is_right_split else is_letter(right)
                expected = not (is_joined and (is_left_split or is_letter(left) or left == " "))
                counts["differing"] += expected != by_characters
            counts[kind] += 1
            if told != expected:
                found.append(f"{encoding.tokens[number]!r} {encoding.tokens[number + 1]!r} in {text!r}")
    return counts, found


Make = Callable[[str], Tokenizer]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    texts, made = mixed_texts(600, seed=1), dict[str, Tokenizer]()

    def train(kind: str) -> Tokenizer:
        if kind not in made:
            folder = tmp_path_factory.mktemp("tokenizer")
            made[kind] = tokenization.load(_trained(kind, texts, folder))
        return made[kind]

    return train


def _trained(kind: str, texts: list[str], folder: Path) -> Path:
    if kind.startswith("SentencePiece"):
        path, is_bpe = folder / "made.model", kind.endswith("BPE")
        with path.open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=file,
                model_type="bpe" if is_bpe else "unigram",
                vocab_size=900 if is_bpe else 1500,
                character_coverage=0.98,
                byte_fallback=is_bpe,
                hard_vocab_limit=False,
                minloglevel=2,
                num_threads=1,
            )
        return path
    if kind.startswith("WordPiece"):
        backend = Backend(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=kind.endswith("uncased"))
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        backend.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=3000, special_tokens=["[UNK]"]))
        backend.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"unk_token": "[UNK]"}), encoding="utf-8")
        return folder
    tokenization.train_bpe(texts, vocabulary_size=1200, folder=folder)
    if kind == "byte-level BPE":
        return folder
    vocabulary = Backend.from_file(str(folder / "tokenizer.json")).get_vocab()
    ranked = [byte_level_bytes(text) for text in sorted(vocabulary, key=vocabulary.__getitem__)[3:]]
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranked)]
    (folder / "made.ranks").write_text("".join(lines), encoding="ascii")
    return folder / "made.ranks"


@pytest.mark.parametrize("kind", KINDS)
def test_ids_part_words_where_offsets_do(make: Make, kind: str) -> None:
    counts, found = disagreements(make(kind), mixed_texts(300))
    assert found[:5] == []
    assert counts["whole"] > 10_000
    # What a character in pieces counts as is seldom another answer than its own.
    assert counts["differing"] < 0.01 * max(counts["piece"], 1000)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_ids_part_words_where_offsets_do_in_ten_thousand_texts(make: Make, kind: str) -> None:
    assert disagreements(make(kind), mixed_texts(10_000, seed=2))[1][:5] == []


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox-olmo", "llama2", "bert-base-uncased", "llama3"])
def test_ids_of_real_vocabularies_part_words_where_offsets_do(shared_data: Path, name: str) -> None:
    tokenizer = tokenization.load(shared_data / "tokenizers" / name)
    english = (shared_data / "text" / "wikitext-2" / "valid.txt").read_text(encoding="utf-8")[:100_000]
    counts, found = disagreements(tokenizer, [*mixed_texts(100), english])
    assert found[:5] == []
    assert counts["whole"] > 15_000


def _words(tokenizer: Tokenizer, text: str) -> list[list[str]]:
    begins_V, ends_V = word_boundaries(tokenizer)
    encoding, words, before = tokenizer.backend.encode(text, add_special_tokens=False), list[list[str]](), None
    for token_id, token in zip(encoding.ids, encoding.tokens, strict=True):
        if before is None or begins_V[token_id] or ends_V[before]:
            words.append([])
        words[-1].append(token)
        before = token_id
    return words


def test_words_by_hand(make: Make) -> None:
    text = "count (3 geese),\nthe miller"
    expected = ["count", " (", "3", " geese", ")", ",", "\n", "the", " miller"]
    found = _words(make("byte-level BPE"), text)
    assert [b"".join(map(byte_level_bytes, word)).decode() for word in found] == expected
    assert max(map(len, found)) > 1
    pieces = ["".join(word).replace("##", "") for word in _words(make("WordPiece"), f"{text} 中文 don't")]
    assert pieces == [*filter(None, map(str.strip, expected)), "中", "文", "don", "'", "t"]
    spelled = ["".join(word) for word in _words(make("SentencePiece unigram"), text)]
    assert spelled == ["▁count", "▁(", "3", "▁geese", ")", ",", "▁the", "▁miller"]


def test_special_ids_and_ids_without_a_token_are_words_of_their_own(make: Make) -> None:
    for kind in KINDS:
        tokenizer = make(kind)
        begins_V, ends_V = word_boundaries(tokenizer)
        assert len(begins_V) == len(ends_V) == tokenizer.vocabulary_size
        special = list(tokenizer.all_special_ids)
        assert tokenizer.mask.id in special
        assert begins_V[special].all()
        assert ends_V[special].all()
        assert 0 < begins_V.mean() < 1


@pytest.mark.parametrize("is_of_words", [True, False])
def test_a_vocabulary_that_drops_blanks_is_refused_unless_its_tokens_are_words(
    tmp_path: Path, *, is_of_words: bool
) -> None:
    backend = Backend(models.WordLevel(unk_token="[UNK]") if is_of_words else models.BPE(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer if is_of_words else trainers.BpeTrainer
    backend.train_from_iterator(["The miller's geese sleep"], trainer(special_tokens=["[UNK]"]))
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"unk_token": "[UNK]"}), encoding="utf-8")
    tokenizer = tokenization.load(tmp_path)
    if is_of_words:
        assert [len(word) for word in _words(tokenizer, "The miller geese sleep")] == [1, 1, 1, 1]
        return
    with pytest.raises(UnsupportedTokenizerError, match=r"do not show where words begin.*unit = \"token\""):
        word_boundaries(tokenizer)


def test_the_rule_is_the_first() -> None:
    """Its answers belong to runs: whoever changes one changes the number, and what reads it."""
    edges = "".join(f"{_is_letter(chr(code)):d}" for code in range(0x20000))
    assert WORD_RULE == 1
    assert (
        hashlib.sha256(edges.encode()).hexdigest() == "428b9cda0cf686c475abf47e41277e1e0ccc8966d70ff698c10dfaa2c711b690"
    )
