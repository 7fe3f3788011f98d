import io
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, processors

import tokenization
from tests.preprocess.test_preprocess_restart import all_files
from tests.support.megatron import write_pair
from tests.support.text import sample_documents, tiny_tokenizer
from toolkit.core.errors import CorpusError, UserError
from toolkit.data import Corpus, DataSettings, open_rows
from toolkit.preprocess.summary import notes, summary_table
from toolkit.preprocess.writer import groups

END = "<|endoftext|>"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def megatron_files(folder: Path, texts: list[str], *, dtype: str, eod: int = 0) -> tuple[bytes, bytes]:
    """What Megatron-LM's `preprocess_data.py --append-eod` writes, as its published layout says."""
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    documents = [[[*backend.encode(text).ids, eod]] for text in texts]
    with tempfile.TemporaryDirectory() as place:
        pair = write_pair(Path(place, "pair"), documents, code={"uint16": 8, "int32": 4}[dtype])
        return shard_bytes(pair.parent, pair.name)


def shown(table: Table) -> str:
    """What a table says, on one line."""
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    return " ".join(console.file.getvalue().split())


def widen(folder: Path, size: int) -> Path:
    """Give the tokenizer in `folder` ids that no text reaches, but for the last: the special token `<last>`."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary.update({f"unreachable {token_id}": token_id for token_id in range(len(vocabulary), size - 1)})
    path.write_text(json.dumps(content))
    backend = Tokenizer.from_file(str(path))
    assert backend.add_special_tokens(["<last>"]) == 1
    assert backend.get_vocab_size() == size
    backend.save(str(path))
    return folder


def frame(folder: Path, single: str) -> Path:
    """Give the tokenizer in `folder` a template."""
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    named = {"<|pad|>": 1, END: 0, "<|begin_of_text|>": 128000}
    named = [(token, token_id) for token, token_id in named.items() if token in single]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def wide_tokenizer(tmp_path):
    """The tiny tokenizer with BOS and ids up to 65,499, so that its tokens need 32 bits."""
    return frame(widen(tiny_tokenizer(tmp_path / "wide"), 65500), "<|pad|> $A")


def shard_bytes(folder: Path, name: str = "shard-00000") -> tuple[bytes, bytes]:
    return (folder / f"{name}.bin").read_bytes(), (folder / f"{name}.idx").read_bytes()


def test_a_shard_is_what_megatron_writes(prepare, write_jsonl, tokenizer_folder, tmp_path):
    texts = [*sample_documents(300, seed=1), f"inside {END} text", "\u2028 x", " "]
    prepare(write_jsonl("a.jsonl", texts))
    assert shard_bytes(tmp_path / "corpus") == megatron_files(tokenizer_folder, texts, dtype="uint16")


def test_a_shard_of_a_wide_vocabulary_with_bos_is_what_megatron_writes(prepare, write_jsonl, wide_tokenizer, tmp_path):
    texts = [*sample_documents(50, seed=2), "<last>"]
    result = prepare(write_jsonl("a.jsonl", texts), tokenizer=str(wide_tokenizer))
    assert result.manifest.dtype == "int32"
    assert shard_bytes(tmp_path / "corpus") == megatron_files(wide_tokenizer, texts, dtype="int32")


@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared tokenizers and text")
@pytest.mark.parametrize(
    ("name", "eod", "eod_id", "dtype"),
    [
        ("bert-base-uncased", "[SEP]", 102, "uint16"),
        ("gpt-neox-olmo", "<|endoftext|>", 50279, "uint16"),
        ("llama3", None, 128001, "int32"),
    ],
)
def test_real_tokenizers_on_real_text_give_megatrons_bytes(
    prepare, write_jsonl, tmp_path, monkeypatch, name, eod, eod_id, dtype
):
    """WordPiece with a token around each text; bytes without; a large vocabulary with a BOS."""
    folder = SHARED / "tokenizers" / name
    if name == "llama3":
        folder = tmp_path / "llama3"
        tokenization.load(SHARED / "tokenizers" / "llama3" / "tokenizer.model").save(folder)
        frame(folder, "<|begin_of_text|> $A")
    lines = (SHARED / "text" / "wiki-en-json" / "wiki_00.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    # Those of all of Unicode are looked at where these tokenizers are, in tests/tokenization.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tokenization.fast.backend.sample_characters", lambda: sorted({*"".join(texts)}))
    prepare(write_jsonl("wiki.jsonl", texts), tokenizer=str(folder), eod=eod)

    assert shard_bytes(tmp_path / "corpus") == megatron_files(folder, texts, eod=eod_id, dtype=dtype)


def test_the_dtype_does_not_depend_on_an_appended_mask(prepare, write_jsonl, tmp_path):
    folder = widen(tiny_tokenizer(tmp_path / "edge"), 65499)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))

    manifest = prepare(write_jsonl("a.jsonl", ["a"]), tokenizer=str(folder)).manifest

    assert (manifest.dtype, manifest.tokenizer.vocab_size) == ("uint16", 65500)


def test_shards_do_not_depend_on_the_mask_token(prepare, write_jsonl, tmp_path):
    source = write_jsonl("a.jsonl", ["a <mask> b <|mask|>", "the river"])
    named = prepare(source, output=tmp_path / "named")
    chosen = prepare(source, output=tmp_path / "chosen", mask_token="token:r")

    assert shard_bytes(tmp_path / "named") == shard_bytes(tmp_path / "chosen")
    assert named.manifest.tokenizer.special_ids.mask != chosen.manifest.tokenizer.special_ids.mask
    assert named.manifest.tokenizer.fingerprint != chosen.manifest.tokenizer.fingerprint


def test_the_manifest_says_what_is_there(prepare, write_jsonl, tmp_path):
    source = write_jsonl("a.jsonl", ["the river", f"a{END}b", "", b"{"])
    prepare(source, max_bad_fraction=0.5)

    content = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    corpus = Corpus(tmp_path / "corpus")

    assert (content["documents"], content["tokens"]) == (2, corpus.shards[0].num_tokens)
    assert content["special_text_hits"] == 1
    assert content["skipped"] == {"broken JSON": 1, "empty": 1}
    assert content["tokenizer"]["special_ids"] == {"bos": None, "eos": 0, "pad": 1, "mask": 2}
    assert [(shard["name"], shard["source"]) for shard in content["shards"]] == [("shard-00000", "a.jsonl")]
    assert sorted(all_files(tmp_path / "corpus")) == [
        "corpus.json",
        "shard-00000.bin",
        "shard-00000.idx",
        "tokenizer/encoding.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    ]


def test_sources_of_all_formats_are_taken_in_one_order(prepare, write_jsonl, tmp_path, tokenizer_folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["three", "four"]}), tmp_path / "in" / "b.parquet")
    write_jsonl("in/c.jsonl", ["five"])
    (tmp_path / "in" / "a.txt").write_text("one\n\ntwo\n")

    manifest = prepare(tmp_path / "in" / "c.jsonl", tmp_path / "in", txt_documents="paragraph").manifest

    backend = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    found = [backend.decode(shard.document(number)[:-1]) for shard in Corpus(tmp_path / "corpus").shards
             for number in range(shard.num_documents)]  # fmt: skip
    assert found == ["one", "two", "three", "four", "five"]
    assert [shard.source for shard in manifest.shards] == ["a.txt and 2 more"]


def lengths_by_shard(folder):
    return [shard.lengths.tolist() for shard in Corpus(folder).shards]


@pytest.mark.parametrize(
    ("group_bytes", "shards", "sources"),
    [
        (1 << 30, [[5, 5], [5, 5], [5, 5], [2, 20]], ["a.jsonl", "a.jsonl", "a.jsonl and 1 more", "b.jsonl"]),
        (1, [[5, 5], [5, 5], [5], [5, 2, 20]], ["a.jsonl", "a.jsonl", "a.jsonl", "b.jsonl"]),
    ],
)
def test_a_shard_closes_after_the_document_that_reaches_its_size_or_at_the_end_of_a_group(
    prepare, write_jsonl, tmp_path, monkeypatch, group_bytes, shards, sources
):
    """With one token a byte and the end, "aaaa" has 5 tokens."""
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", group_bytes)
    first, second = write_jsonl("a.jsonl", ["qqqq"] * 5), write_jsonl("b.jsonl", ["qqqq", "q", "qqqqqqqqqqqqqqqqqqq"])
    manifest = prepare(first, second, shard_tokens=10).manifest

    assert lengths_by_shard(tmp_path / "corpus") == shards
    assert [shard.source for shard in manifest.shards] == sources


def test_sources_share_a_shard_until_their_group_has_its_bytes(prepare, write_jsonl, monkeypatch):
    """Lines of 14 bytes: two of them make a group, and a source of three is one by itself."""
    counts = {"a": 1, "b": 1, "c": 1, "d": 3, "e": 1, "f": 1}
    files = [write_jsonl(f"in/{name}.jsonl", ["q"] * count) for name, count in counts.items()]
    assert [file.stat().st_size for file in files] == [14, 14, 14, 42, 14, 14]
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 28)
    manifest = prepare(*files).manifest

    assert [(shard.source, shard.documents) for shard in manifest.shards] == [
        ("a.jsonl and 1 more", 2),
        ("c.jsonl", 1),
        ("d.jsonl", 3),
        ("e.jsonl and 1 more", 2),
    ]


def test_many_small_files_are_one_shard_with_the_bytes_of_one_large_file(prepare, write_jsonl, tmp_path):
    """D4: a shard for each file would leave rows two thirds empty, and `random-cut` more than a third of the tokens."""
    for number, text in enumerate(sample_documents(400)):
        (tmp_path / "in" / f"{number % 7}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / f"{number % 7}" / f"{number:04d}.txt").write_text(text)
    in_order = [path.read_text() for path in sorted((tmp_path / "in").rglob("*.txt"))]
    lines = prepare(write_jsonl("lines.jsonl", in_order), output=tmp_path / "lines").manifest
    found = prepare(tmp_path / "in", sequence_length=128)

    assert [shard.source for shard in found.manifest.shards] == ["0/0000.txt and 399 more"]
    assert found.manifest.shards[0].sha256_bin == lines.shards[0].sha256_bin
    assert found.manifest.shards[0].sha256_idx == lines.shards[0].sha256_idx
    assert found.rows.fill > 0.99
    corpus = Corpus(tmp_path / "corpus")
    settings = DataSettings(train=str(corpus.path), sequence_length=128, windows="random-cut")
    assert open_rows(corpus, settings, seed=0).num_tokens > 0.99 * corpus.num_tokens


def test_equal_input_in_another_place_gives_an_equal_file(prepare, write_jsonl, tmp_path):
    found = []
    for place in ("here", "far/from/here"):
        for name in ("x/a.jsonl", "x/b/a.jsonl"):
            write_jsonl(f"{place}/{name}", [name])
        prepare(tmp_path / place, output=tmp_path / place / "corpus")
        found.append((tmp_path / place / "corpus" / "corpus.json").read_bytes())
    assert found[0] == found[1]
    assert b'"source": "a.jsonl and 1 more"' in found[0]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"limit_documents": 3}, 3),
        ({"limit_tokens": 10}, 2),
        ({"limit_tokens": 11}, 3),
        ({"limit_tokens": 1}, 1),
        ({"limit_documents": 2, "limit_tokens": 1000}, 2),
        ({"limit_documents": 1000, "limit_tokens": 12}, 3),
        ({"limit_documents": 6}, 6),
        ({"limit_documents": 100}, 6),
    ],
)
def test_limits_count_kept_documents_and_their_tokens(prepare, write_jsonl, limits, kept):
    rows = ["qqqq", "", "qqqq", b"{}", "qqqq"]
    result = prepare(write_jsonl("a.jsonl", rows), write_jsonl("b.jsonl", rows), max_bad_fraction=1, **limits)

    assert (result.manifest.documents, result.manifest.tokens) == (kept, 5 * kept)
    # Rows behind the last document are not looked at: after 3 documents the first file's skipped rows only.
    assert sum(result.manifest.skipped.values()) == {1: 0, 2: 1, 3: 2, 6: 4}[kept]


def test_no_bos_no_eod_and_literal_text_reach_the_ids(prepare, write_jsonl, tmp_path, wide_tokenizer):
    source = write_jsonl("a.jsonl", [f"a{END}"])
    backend = Tokenizer.from_file(str(wide_tokenizer / "tokenizer.json"))
    prepare(source, tokenizer=str(wide_tokenizer), add_bos=False, add_eod=False, special_text="literal")

    found = Corpus(tmp_path / "corpus").shards[0].document(0).tolist()
    backend.encode_special_tokens = True
    assert found == backend.encode(f"a{END}", add_special_tokens=False).ids
    assert 0 not in found


def test_packing_plans_are_built_on_request(prepare, write_jsonl, tmp_path):
    result = prepare(write_jsonl("a.jsonl", sample_documents(50)), sequence_length=64)
    assert result.rows.sequence_length == 64
    assert any(name.startswith("shard-00000.plan-S64") for name in all_files(tmp_path / "corpus"))


def test_a_corpus_too_small_to_pack_can_still_be_finished(prepare, write_jsonl):
    source = write_jsonl("a.jsonl", ["q"])

    with pytest.raises(CorpusError, match="without --sequence-length finishes the corpus"):
        prepare(source, sequence_length=64)
    assert prepare(source).num_kept_shards == 1


def test_texts_that_give_no_ids_are_empty_rows(prepare, write_jsonl, tmp_path):
    from tokenizers import models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"a": 0, "end": 1}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "words.json"))
    source = write_jsonl("a.jsonl", ["a", "   ", "a a", b"{}", " "])
    result = prepare(source, tokenizer=str(tmp_path / "words.json"), eod="end", max_bad_fraction=1, shard_tokens=1)

    assert lengths_by_shard(tmp_path / "corpus") == [[2], [3]]
    assert result.manifest.skipped == {"empty": 2, "missing field": 1}
    account = result.tally.sources["a.jsonl"]
    assert (account.rows, account.documents, account.first_bad["missing field"].row) == (5, 2, 4)


def test_too_many_bad_rows_stop_it_with_every_reason(prepare, write_jsonl, tmp_path):
    good = write_jsonl("a.jsonl", ["x"] * 90)
    bad = write_jsonl("b.jsonl", ["x"] * 6 + [b"{", b'{"txt": 1}', b'{"txt": 2}', ""])

    with pytest.raises(UserError, match=r"3 of 100 rows read so far \(3\.0%\)") as failure:
        prepare(good, bad)
    message = str(failure.value)
    assert "b.jsonl: 1 row broken JSON (first row 7: Expecting property name" in message
    assert "; 2 rows missing field (first row 8: no 'text'; its keys: 'txt')\n" in message
    assert not (tmp_path / "corpus" / "corpus.json").exists()

    assert prepare(good, bad, max_bad_fraction=0.03).manifest.documents == 96


def test_bad_rows_are_looked_at_after_each_source(prepare, write_jsonl):
    first = write_jsonl("a.jsonl", ["x"] * 9 + [b"{"])
    later = write_jsonl("b.jsonl", ["x"] * 990)

    with pytest.raises(UserError, match="1 of 10 rows read so far"):
        prepare(first, later)


def test_empty_rows_are_not_bad(prepare, write_jsonl):
    assert prepare(write_jsonl("a.jsonl", ["x"] + [""] * 50), max_bad_fraction=0).manifest.skipped == {"empty": 50}


def test_no_document_at_all_is_an_error(prepare, write_jsonl):
    with pytest.raises(UserError, match=r"a\.jsonl gives no document: it is empty"):
        prepare(write_jsonl("a.jsonl", ["", ""]))


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_documents_end_once_where_the_tokenizer_ends_texts_itself(
    prepare, write_jsonl, tokenizer_folder, tmp_path, engine
):
    folder = frame(Path(shutil.copytree(tokenizer_folder, tmp_path / "ending")), f"<|pad|> $A {END}")
    source = write_jsonl("a.jsonl", sample_documents(20))
    given = {"tokenizer": str(folder), "engine": engine}
    result = prepare(source, output=tmp_path / "once", **given)
    twice = prepare(source, output=tmp_path / "twice", eod=END, **given)

    for number, text in enumerate(sample_documents(20)):
        ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
        assert Corpus(tmp_path / "once").shards[0].document(number).tolist() == ids
        assert Corpus(tmp_path / "twice").shards[0].document(number).tolist() == [*ids, 0]
    assert "itself puts after every text; not appended again" in shown(summary_table(result))
    assert "itself puts after every text; appended once more (--eod)" in shown(summary_table(twice))


def test_the_tokenizer_of_a_corpus_makes_the_same_corpus(prepare, write_jsonl, tmp_path):
    source = write_jsonl("a.jsonl", sample_documents(20))
    prepare(source, output=tmp_path / "first")
    prepare(source, output=tmp_path / "second", tokenizer=str(tmp_path / "first"))

    assert shard_bytes(tmp_path / "first") == shard_bytes(tmp_path / "second")


def test_the_rules_of_encoding_are_recorded(prepare, write_jsonl, tmp_path, wide_tokenizer):
    source = write_jsonl("a.jsonl", ["the river"])
    prepare(source, tokenizer=str(wide_tokenizer), add_bos=False, add_eod=False)

    recorded = Corpus(tmp_path / "corpus").manifest.tokenizer.encoding
    frame = {"front": (), "back": ()}
    assert recorded.model_dump() == {"parse_special_text": True, "add_bos": False, "add_eod": False, "frame": frame}
    assert json.loads((tmp_path / "corpus" / "tokenizer" / "encoding.json").read_text())["add_eod"] is False
    kept = Tokenizer.from_file(str(tmp_path / "corpus" / "tokenizer" / "tokenizer.json"))
    assert kept.encode("the river").ids == Corpus(tmp_path / "corpus").shards[0].document(0).tolist()


@pytest.mark.parametrize(("choice", "is_told"), [("token:Ġthe", True), ("id:2", False), ("auto", False)])
def test_an_ordinary_token_as_mask_is_told(prepare, write_jsonl, choice, is_told):
    result = prepare(write_jsonl("a.jsonl", ["the river"]), mask_token=choice)

    assert any("is an ordinary token" in note for note in notes(result)) == is_told
