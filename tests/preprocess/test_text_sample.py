"""What a tokenizer cannot write is told: twelve kinds of tokenizers, on texts that they can write and cannot."""

import json

import pytest
import sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

import tokenization
from tests.support.text import sample_documents
from tokenization import EncodingRules, Tokenizer
from tokenization.losses import lost_characters
from toolkit.core.errors import UserError
from toolkit.data import Corpus, read_manifest
from toolkit.inspection.corpora import measure_lengths, statistics
from toolkit.preprocess import encoding, program, text_sample
from toolkit.preprocess.encoding import SpanEncoder
from toolkit.preprocess.readers import Reason, Row, Span
from toolkit.preprocess.summary import notes, summary_table
from toolkit.preprocess.text_sample import keep_sample, look_at_sample

TEXTS = ("the old miller", "The CAFÉ", "miller мельник", "мельник", "geese 🙂", "a\x04b", "\x01 \n")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("the", "old", "miller", "cafe", "geese")
BLANK = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def numbered(*texts):
    return {text: number for number, text in enumerate(dict.fromkeys(texts))}


def bpe(*, unknown=None, pieces=(), **options):
    backend = Backend(models.BPE(numbered(*pieces, *LETTERS, " "), [], unk_token=unknown, **options))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return backend


def byte_level(alphabet):
    backend = Backend(models.BPE(numbered(*alphabet), []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return backend


def words(model, *, is_lower, has_frame=False):
    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=is_lower)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    if has_frame:
        ids = [(text, backend.token_to_id(text)) for text in ("[CLS]", "[SEP]")]
        backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return backend


def unigram(*, has_unknown, byte_fallback=False):
    texts = numbered(*(["<unk>"] if has_unknown else []), *(BYTES if byte_fallback else []), *LETTERS, BLANK)
    unk_id = texts["<unk>"] if has_unknown else None
    backend = Backend(models.Unigram([(text, -1.0) for text in texts], unk_id, byte_fallback=byte_fallback))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return backend


def without_control_bytes():
    return byte_level(sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"\u0104"}))  # which spells the byte 0x04


UNKNOWN = numbered("[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS))
# A letter for each text: written whole, partly lost and told, a bad row, or empty. Control characters do not count.
KINDS = {
    "byte-level": (lambda: byte_level(sorted(pre_tokenizers.ByteLevel.alphabet())), "WWWWWWW"),
    "byte-level without a byte": (without_control_bytes, "WWWWWWW"),
    "BPE": (bpe, "WLLBLWW"),
    "BPE, unknown": (lambda: bpe(unknown="<unk>", pieces=["<unk>"]), "WLLLLLL"),
    "BPE, bytes": (lambda: bpe(unknown="<unk>", pieces=["<unk>", *BYTES], byte_fallback=True), "WWWWWWW"),
    "WordPiece": (lambda: words(models.WordPiece(UNKNOWN, unk_token="[UNK]"), is_lower=True), "WWLLLWE"),
    "WordPiece, frame": (
        lambda: words(models.WordPiece(UNKNOWN, unk_token="[UNK]"), is_lower=True, has_frame=True),
        "WWLLLWE",
    ),
    "WordPiece, cased": (lambda: words(models.WordPiece(UNKNOWN, unk_token="[UNK]"), is_lower=False), "WLLLLWE"),
    "WordLevel": (lambda: words(models.WordLevel(numbered("[UNK]", *WORDS), "[UNK]"), is_lower=True), "WWLLLLE"),
    "WordLevel without unknown": (lambda: words(models.WordLevel(numbered(*WORDS)), is_lower=True), "WWBBBBE"),
    "Unigram": (lambda: unigram(has_unknown=True), "WLLLLLL"),
    "Unigram without unknown": (lambda: unigram(has_unknown=False), "WBBBBBB"),
    "Unigram, bytes": (lambda: unigram(has_unknown=True, byte_fallback=True), "WWWWWWW"),
}


def outcome(tokenizer, text):
    span = Span(len(text), lambda: [Row(text)])
    encoded = SpanEncoder(tokenizer, tokenizer, holdout=0.0, num_bytes=1)(span)
    if encoded.skipped:
        return {Reason.CANNOT_ENCODE: "B", Reason.EMPTY: "E"}[encoded.skipped[0][1].reason]
    assert encoded.sample == [text]
    is_lossy = encoded.unknown_N.any() or lost_characters(tokenizer, text, encoded.ids).total()
    return "L" if is_lossy else "W"


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_written_is_told(tmp_path, kind):
    make, expected = KINDS[kind]
    make().save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenization.load(tmp_path, rules=EncodingRules(add_eod=False))

    assert "".join(outcome(tokenizer, text) for text in TEXTS) == expected


def test_a_text_that_cannot_be_written_is_told_by_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "_OWN_CHARACTERS", 8)  # of a batch
    KINDS["Unigram without unknown"][0]().save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenization.load(tmp_path, rules=EncodingRules(add_eod=False))
    texts = ["miller", "geese", "мельник", "old", "ы", "cafe"]
    encoded = SpanEncoder(tokenizer, tokenizer, holdout=0.0, num_bytes=1)(Span(1, lambda: [*map(Row, texts)]))

    assert [number for number, _ in encoded.skipped] == [2, 4]
    # In the words of its library, which the row of another text would not have.
    assert all("unk" in row.found.lower() for _, row in encoded.skipped)
    assert encoded.rows_N.tolist() == [0, 1, 3, 5]


@pytest.mark.parametrize(("type_", "expected"), [("bpe", "WWWWWWW"), ("unigram", "WLLLLLL")])
def test_sentencepiece_models_too(tmp_path, type_, expected):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*sample_documents(40, seed=1), LETTERS]),
        model_prefix=str(tmp_path / "made"),
        model_type=type_,
        vocab_size=400 if type_ == "bpe" else 90,
        byte_fallback=type_ == "bpe",
        normalization_rule_name="identity",
        minloglevel=2,
    )
    tokenizer = tokenization.load(tmp_path / "made.model", rules=EncodingRules(add_eod=False))

    assert "".join(outcome(tokenizer, text) for text in TEXTS) == expected


def test_a_corpus_tells_what_was_lost(prepare, write_jsonl, tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    KINDS["WordPiece, frame"][0]().save(str(folder / "tokenizer.json"))
    source = write_jsonl("a.jsonl", ["the old miller"] * 3 + ["miller мельник", "\x01 \n"])

    result = prepare(source, tokenizer=str(folder), eod="[SEP]")

    text = read_manifest(tmp_path / "corpus").text
    # Equal texts are looked at once.
    assert (text.bytes, text.unknown_tokens, text.sampled_characters, text.lost_characters) == (63, 1, 25, 7)
    assert set(text.often_lost.split()) == set("мельник")
    assert result.manifest.skipped == {"empty": 1}
    lost = text.losses(result.manifest.tokens)
    assert "% of the tokens are the unknown token and 28 % of the characters" in lost
    corpus = Corpus(tmp_path / "corpus")
    for table in (summary_table(result), statistics(corpus, measure_lengths(corpus))):
        names, values = (list(column.cells) for column in table.columns[:2])
        assert values[names.index("lost text")] == lost
    assert any("More than 1 % of the text is lost" in note for note in notes(result))


def test_a_document_that_memory_does_not_hold_is_refused(prepare, write_jsonl, monkeypatch):
    monkeypatch.setattr(encoding, "_LARGE", 0)
    monkeypatch.setattr(encoding, "available_memory", lambda: 119_000)

    with pytest.raises(UserError, match=r"the source .*a\.jsonl: a document of 1,000 .*--txt-documents"):
        prepare(write_jsonl("a.jsonl", ["a" * 1000]))


@pytest.mark.parametrize("is_long", [False, True])
def test_a_saved_tokenizer_with_other_ids_is_an_error(prepare, write_jsonl, tmp_path, monkeypatch, is_long):
    """Found before the work starts, where it takes long."""
    files = Tokenizer.files.func

    def damaged(tokenizer):
        written = files(tokenizer)
        content = json.loads(written["tokenizer.json"])
        content["model"]["merges"] = content["model"]["merges"][:20]
        return {**written, "tokenizer.json": json.dumps(content).encode()}

    monkeypatch.setattr(Tokenizer, "files", property(damaged))
    monkeypatch.setattr(program, "_LONG_BYTES", 0 if is_long else 1 << 30)

    with pytest.raises(UserError, match="would give other ids than its documents have: token"):
        prepare(write_jsonl("a.jsonl", sample_documents(5)))
    assert not (tmp_path / "corpus" / "corpus.json").exists()
    assert (tmp_path / "corpus" / "unfinished" / "00000").exists() is not is_long


def test_a_text_with_an_end_that_only_the_saved_tokenizer_reads_as_special_is_no_difference(
    prepare, write_jsonl, tokenizer_folder, tmp_path
):
    source, bare = write_jsonl("a.jsonl", ["the miller the end"]), tmp_path / "bare.json"
    bare.write_bytes((tokenizer_folder / "tokenizer.json").read_bytes())  # without names of special tokens

    result = prepare(source, tokenizer=str(bare), eod="e")
    assert (result.manifest.documents, result.tokenizer.newly_special[0]) == (1, "e")


def test_the_sample_is_bounded_and_has_a_text_of_each_group(tokenizer_folder, tmp_path, monkeypatch):
    for number in range(5):
        folder = tmp_path / f"{number:05d}"
        folder.mkdir()
        for _ in range(2):  # equal texts of two spans
            keep_sample(folder, [letter * (number + 1) for letter in LETTERS])
    tokenizer = tokenization.load(tokenizer_folder)

    assert look_at_sample(tmp_path, tokenizer).sampled_characters == 26 * (1 + 2 + 3 + 4 + 5)
    monkeypatch.setattr(text_sample, "_MOST_TEXTS", 5)
    assert look_at_sample(tmp_path, tokenizer).sampled_characters == 1 + 2 + 3 + 4 + 5


def test_texts_with_one_footer_are_sampled_apart(tokenizer_folder):
    tokenizer = tokenization.load(tokenizer_folder)
    encode = SpanEncoder(tokenizer, tokenizer, holdout=0.0, num_bytes=32 * 3000)
    rows = [Row(f"{number} {'x' * 900} All rights reserved. {'-' * 80}") for number in range(300)]

    assert 50 < len(encode(Span(1, lambda: rows)).sample) < 200


@pytest.mark.parametrize(
    ("given", "is_noted"), [({}, True), ({"eod": "<|endoftext|>"}, False), ({"eod": "<|im_end|>"}, False)]
)
def test_the_end_of_a_turn_as_end_of_documents_is_noted(prepare, write_jsonl, tmp_path, given, is_noted):
    """As chat models name it, whose vocabulary has the end of pretraining as well."""
    backend, folder = byte_level(sorted(pre_tokenizers.ByteLevel.alphabet())), tmp_path / "chat"
    backend.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')

    found = notes(prepare(write_jsonl("a.jsonl", ["the miller"]), tokenizer=str(folder), **given))
    assert [("end with <|im_end|>" in note, "--eod '<|endoftext|>'" in note) for note in found] == [
        (True, True)
    ] * is_noted
