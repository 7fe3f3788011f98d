"""`toolkit adopt`: pairs as Megatron-LM writes them, by a writer made here from its published layout."""

import json
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

import tokenization
from tests.preprocess.test_preprocess_restart import all_files
from tests.support.megatron import Documents, write_pair
from tests.support.mutations import mutated
from tests.support.runs import RunCase, write_run
from tokenization import Frame
from toolkit.core.errors import CorpusError, UserError
from toolkit.data import Corpus, DataSettings, Order, RowStream, ShardWriter, open_rows, verify_corpus
from toolkit.preprocess.adopted_frames import FrameIds
from toolkit.preprocess.adoption import Adoption, adopt, examine_pair
from toolkit.testing.distributed import run_distributed

EOS = 0


def made_up(count: int, *, seed: int = 0, sentences: int = 1, top: int = 384) -> Documents:
    """Documents of ordinary ids, the last one the end of document."""
    generator = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        document = [
            generator.integers(3, top, generator.integers(1, 40)).tolist()
            for _ in range(generator.integers(1, sentences + 1))
        ]
        document[-1].append(EOS)
        documents.append(document)
    return documents


def _joined(documents: Documents) -> list[list[int]]:
    return [[token for sentence in document for token in sentence] for document in documents]


@pytest.fixture
def megatron(tmp_path: Path) -> dict[Path, Documents]:
    """Two pairs in two folders, one of plain documents and one of sentences."""
    plain, sentences = made_up(50), made_up(40, seed=1, sentences=4)
    return {
        write_pair(tmp_path / "megatron" / "b_text_document", plain): plain,
        write_pair(tmp_path / "megatron" / "more" / "a.v2_text_sentence", sentences): sentences,
    }


@pytest.fixture
def take(tokenizer_folder: Path, tmp_path: Path):
    def run(*named: Path | str, output: Path | None = None, **given: object) -> Adoption:
        folder = output or tmp_path / "corpus"
        return adopt([str(name) for name in named], folder, tokenizer=str(tokenizer_folder), **given)

    return run


def test_documents_are_read_where_they_lie(take, tmp_path, megatron):
    before = all_files(tmp_path / "megatron")
    found = take(*megatron)
    corpus = Corpus(tmp_path / "corpus")
    in_order = sorted(megatron, key=str)
    documents = [document for prefix in in_order for document in _joined(megatron[prefix])]
    assert [shard.prefix for shard in corpus.shards] == in_order
    read = [shard.document(number).tolist() for shard in corpus.shards for number in range(shard.num_documents)]
    assert read == documents
    assert (corpus.num_documents, corpus.num_tokens) == (90, sum(map(len, documents)))
    assert corpus.manifest.dtype == "uint16"
    assert [entry.source for entry in corpus.manifest.shards] == [str(prefix) for prefix in in_order]
    assert (found.num_documents, found.num_without_end) == (90, 0)
    assert all_files(tmp_path / "megatron") == before
    tokenizer = [f"tokenizer/{name}.json" for name in ("encoding", "tokenizer", "tokenizer_config")]
    assert sorted(all_files(tmp_path / "corpus")) == ["corpus.json", *tokenizer]


@pytest.mark.parametrize("name", ["{}", "{}.bin", "{}.idx"])
def test_a_pair_may_be_named_in_three_ways(take, tmp_path, name):
    prefix = write_pair(tmp_path / "megatron" / "x.y", made_up(5))
    assert len(take(name.format(prefix), str(prefix)).manifest.shards) == 1


def test_globs_and_relative_paths(take, tmp_path, megatron, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = take("megatron/**/*", "megatron/b*.idx", output=Path("here"))
    assert found.manifest.table.names == [str(prefix) for prefix in sorted(megatron, key=str)]
    Path("here").rename("there")
    assert Corpus("there").num_documents == 90


@pytest.mark.parametrize("named", [("m/x", "link/x"), ("m/*",), ("**/*.idx",), ("copy", "m/x.bin")])
def test_a_pair_with_several_names_is_taken_once(take, tmp_path, named, capsys):
    write_pair(tmp_path / "m" / "x", made_up(5))
    (tmp_path / "link").symlink_to("m")
    for folder, target in (("m", "x"), (".", "m/x")):
        for ending in ("bin", "idx"):
            (tmp_path / folder / f"copy.{ending}").symlink_to(f"{target}.{ending}")
    found = take(*(tmp_path / name for name in named))
    assert found.manifest.documents == 5
    assert found.manifest.table.names == [str(tmp_path / "m" / "x")]
    assert "Read once, though named again by links: " in capsys.readouterr().out


def test_rows_are_those_of_the_same_documents_in_a_corpus_of_ours(take, tmp_path, megatron):
    """Packed by best fit: sentences are joined again, so a document is one segment."""
    take(*megatron)
    (tmp_path / "ours").mkdir()
    for prefix, documents in megatron.items():
        ours = _joined(documents)
        with ShardWriter(tmp_path / "ours" / prefix.name, dtype="uint16") as writer:
            writer.append(np.array([token for document in ours for token in document]), np.array([*map(len, ours)]))
    take(*(tmp_path / "ours" / prefix.name for prefix in megatron), output=tmp_path / "second")
    read = []
    for folder in ("corpus", "second"):
        settings = DataSettings(train=str(tmp_path / folder), sequence_length=64)
        rows = open_rows(Corpus(tmp_path / folder), settings, seed=0)
        whole = RowStream(rows, Order(rows.num_rows, seed=0, shuffle="global")).at(np.arange(rows.num_rows))
        read.append(
            sorted(
                (row.tolist(), segments.tolist())
                for row, segments in zip(whole.tokens_BS, whole.segments_BS, strict=True)
            )
        )
    assert read[0] == read[1]


def test_plans_lie_beside_the_pairs_and_verify_reads_all(take, tmp_path, megatron):
    take(*megatron)
    folder = tmp_path / "corpus"
    open_rows(Corpus(folder), DataSettings(train=str(folder), sequence_length=64), seed=0)
    plans = [path for path in (tmp_path / "megatron").rglob("*.plan-*") if path.is_file()]
    assert len(plans) == 2
    assert verify_corpus(folder).damaged == ()
    for path in [*(tmp_path / "megatron").rglob("*.bin"), *(tmp_path / "megatron").rglob("*.idx"), *plans]:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        intact = path.read_bytes()
        path.write_bytes(content)
        assert [finding.path for finding in verify_corpus(folder).damaged] == [path]
        path.write_bytes(intact)


def test_training_on_an_adopted_corpus(take, tmp_path, megatron):
    run_file = write_run(tmp_path / "run")
    take(*megatron)
    corpus = tmp_path / "corpus"
    overrides = (f"data.train={corpus}", f"data.validation={corpus}", "model.vocab_size=384")
    ((outcome, lines),) = run_distributed([RunCase(str(run_file), "zero0", overrides)], world_size=1)[0]
    assert outcome == "finished at step 20"
    assert len(lines) == 21


def test_int32_pairs(take, tmp_path):
    documents = made_up(5)
    assert take(write_pair(tmp_path / "m" / "wide", documents, code=4)).manifest.dtype == "int32"
    assert Corpus(tmp_path / "corpus").shards[0].document(3).tolist() == _joined(documents)[3]


@pytest.mark.parametrize(("code", "name"), [(1, "uint8"), (2, "int8"), (3, "int16"), (5, "int64")])
def test_other_types_are_refused_by_name(take, tmp_path, code, name):
    prefix = write_pair(tmp_path / "m" / "x", made_up(5, top=100), code=code)
    with pytest.raises(CorpusError, match=rf"x\.idx is of {name} tokens"):
        take(prefix)
    assert not (tmp_path / "corpus").exists()


def test_two_types_in_one_corpus_are_refused(take, tmp_path):
    pairs = [write_pair(tmp_path / "m" / f"p{code}", made_up(5), code=code) for code in (4, 8)]
    with pytest.raises(CorpusError, match=r"m/p4 holds int32 tokens, and .*m/p8 uint16: a corpus has one type"):
        take(*pairs)


@pytest.mark.parametrize(("wrong", "code"), [(384, 8), (-1, 4), (65535, 8), (2**31 - 1, 4)])
def test_an_id_outside_the_vocabulary_is_named(take, tmp_path, wrong, code):
    """The tokenizer has 384 ids; the 51st token of the second pair is wrong."""
    good = write_pair(tmp_path / "m" / "a", made_up(20), code=code)
    bad = write_pair(tmp_path / "m" / "b", [[[5] * 50 + [wrong, 7, EOS]]], code=code)
    with pytest.raises(CorpusError, match=rf"m/b\.bin has the id {wrong} \(token 50 of the file.* of 384 ids"):
        take(good, bad)
    assert not (tmp_path / "corpus").exists()


def test_documents_without_the_end_token_are_said(take, tmp_path):
    """Empty documents have no end; a piece of the file may end where a document does."""
    documents = made_up(10)
    for number in (2, 5, 9):
        documents[number][-1].pop()
        documents[number][-1].append(7)
    documents[4:4] = [[], [[]]]
    found = take(write_pair(tmp_path / "m" / "x", documents))
    assert (found.manifest.documents, found.num_documents, found.num_without_end) == (12, 10, 3)
    assert "3 of 10 documents do not end with <|endoftext|> (id 0)" in str(found)


def _with_template(tokenizer_folder: Path, folder: Path, single: str) -> Path:
    """The tokenizer with a post-processor; `<|pad|>` has the id 1 and `<|endoftext|>` the id 0."""
    shutil.copytree(tokenizer_folder, folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    named = [("<|pad|>", 1), ("<|endoftext|>", 0)]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    ("template", "front", "back", "rules"),
    [
        (None, [], [0], (True, True)),
        (None, [], [], (True, False)),
        ("<|pad|> $A", [1], [0], (True, True)),
        ("<|pad|> $A", [], [0], (False, True)),
        ("<|pad|> $A", [1], [], (True, False)),
        ("<|pad|> $A <|endoftext|>", [1], [0], (True, True)),
        ("<|pad|> $A <|endoftext|>", [1], [0, 0], (True, True)),
        ("<|pad|> $A <|endoftext|>", [], [], (False, False)),
    ],
)
def test_the_frame_is_counted_from_the_documents(tokenizer_folder, tmp_path, template, front, back, rules):
    """Whatever the tokenizer would do: documents of Megatron's were made with options of its own."""
    folder = tokenizer_folder
    if template is not None:
        folder = _with_template(tokenizer_folder, tmp_path / "framing", template)
    documents = [[[*front, *document[0][:-1], 5, *back]] for document in made_up(9)]
    documents += [[], [[5, 6]], [[0]], [[1, 1]]]
    adopt([str(write_pair(tmp_path / "m" / "x", documents))], tmp_path / "corpus", tokenizer=str(folder))

    encoding = Corpus(tmp_path / "corpus").manifest.tokenizer.encoding
    assert (list(encoding.frame.front), list(encoding.frame.back)) == (front, back)
    assert (encoding.add_bos, encoding.add_eod) == rules
    saved = json.loads((tmp_path / "corpus" / "tokenizer" / "encoding.json").read_text())
    assert saved["frame"] == {"front": front, "back": back}
    tokenizer = tokenization.load(tmp_path / "corpus")
    assert list(tokenizer.own_frame.front) == front
    assert tokenizer.fingerprint == tokenization.load(folder).fingerprint


def test_a_mixture_of_frames_is_said(take, tmp_path):
    documents = made_up(10)
    for document in documents[:3]:
        document[-1].pop()
        document[-1].append(7)
    said = str(take(write_pair(tmp_path / "m" / "x", documents)))
    assert "Documents have nothing before, id 0 after" in said
    assert "3 of 10 documents have something else around them, most often nothing before, nothing after" in said


def test_documents_may_end_with_another_special_token(take, tmp_path):
    """`<|pad|>` has the id 1; before the end that the tokenizer names it is a part of the text."""
    documents = [[[*document[0][:-1], 5, 1]] for document in made_up(9)]
    documents += [[[5, 6, 1, EOS]], [[1]], [[5, 1, 1]]]
    found = take(write_pair(tmp_path / "m" / "x", documents))
    assert found.frames == {Frame(back=(1,)): 11, Frame(back=(EOS,)): 1}
    assert found.manifest.tokenizer.encoding.frame.back == (1,)
    assert not found.manifest.tokenizer.encoding.add_eod
    assert json.loads((tmp_path / "corpus" / "tokenizer" / "encoding.json").read_text())["frame"]["back"] == [1]
    assert (
        "11 of 12 documents do not end with <|endoftext|> (id 0), the tokenizer's end-of-document token: most end with "
        "<|pad|> (id 1) instead."
    ) in str(found)


def test_where_no_end_is_named_it_may_be_any_special_token(tokenizer_folder, tmp_path):
    """A tokenizer.json alone names no roles."""
    shutil.copy(tokenizer_folder / "tokenizer.json", tmp_path / "tokenizer.json")
    prefix = write_pair(tmp_path / "m" / "x", made_up(9))
    found = adopt([str(prefix)], tmp_path / "corpus", tokenizer=str(tmp_path / "tokenizer.json"))
    assert found.manifest.tokenizer.encoding.frame.back == (EOS,)
    assert "No file names a token that ends a document" in str(found)


def test_what_preprocess_says_of_a_tokenizer_is_said_here_too(take, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("toolkit.preprocess.adoption.ids_that_differ_in_transformers", lambda _: ["Ids differ"])
    said = str(take(write_pair(tmp_path / "m" / "x", made_up(3)), mask_token="id:300"))
    assert "(id 300) is an ordinary token, which texts contain" in said
    assert "Ids differ. Megatron-LM's ids are AutoTokenizer's." in capsys.readouterr().out


@pytest.mark.parametrize("piece_bytes", [2, 6, 64, 4096])
def test_ends_are_counted_over_pieces_of_any_size(take, tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr("toolkit.preprocess.adoption._PIECE_BYTES", piece_bytes)
    monkeypatch.setattr("toolkit.preprocess.adopted_frames._DOCUMENTS_AT_ONCE", 7)
    documents = made_up(60, sentences=3)
    for document in documents[::4]:
        document[-1][-1] = 9
    found = take(write_pair(tmp_path / "m" / "x", documents))
    assert (found.num_documents, found.num_without_end) == (60, 15)
    inside = sum(document.count(EOS) for document in (ids[:-1] for ids in _joined(documents)))
    assert found.num_ends_inside == inside
    assert verify_corpus(tmp_path / "corpus").damaged == ()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nothing", "no such pair: .*nothing': neither .*nothing.bin nor"),
        ("m", r"m is a directory\. Give the pairs in it, for example '.*m/\*'"),
        ("m/z*", "no pair matches .*z"),
        ("m/half", r"half\.idx is missing: a pair is"),
        ("m/other.bin", r"other\.bin is missing"),
        ("m/damaged", r"damaged\.idx is damaged: its sequences do not follow one another\. Where the "),
    ],
)
def test_what_is_not_there_or_damaged_is_named(take, tmp_path, named, message):
    write_pair(tmp_path / "m" / "half", made_up(3))
    Path(f"{tmp_path}/m/half.idx").rename(f"{tmp_path}/m/other.idx")
    index = Path(f"{write_pair(tmp_path / 'm' / 'damaged', made_up(3))}.idx")
    content = bytearray(index.read_bytes())
    content[34] ^= 1  # the length of the first sequence
    index.write_bytes(content)
    with pytest.raises(UserError, match=message):
        take(tmp_path / named)


def test_ends_inside_documents_are_counted(take, tmp_path):
    found = take(write_pair(tmp_path / "m" / "x", [[[5, EOS, 6, EOS]], [[7, EOS]], [[EOS, 8]]]))
    assert found.num_ends_inside == 2
    assert "stands 2 times inside documents" in str(found)


def test_more_pairs_than_there_may_be_openall_files(take, tmp_path):
    prefixes = [write_pair(tmp_path / "m" / f"{number:03}", made_up(2, seed=number)) for number in range(150)]
    limits, num_open = resource.getrlimit(resource.RLIMIT_NOFILE), len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 100, limits[1]))
    try:
        assert len(take(*prefixes).manifest.shards) == 150
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_nothing_is_lost_in_the_output_folder(take, tmp_path, prepare, write_jsonl):
    prefix = write_pair(tmp_path / "m" / "x", made_up(3))
    take(prefix)
    before = all_files(tmp_path / "corpus")
    with pytest.raises(UserError, match="or replace it with --overwrite"):
        take(prefix)
    (tmp_path / "corpus" / "plans-S64-m12-v1-0000000000000000").touch()
    take(prefix, overwrite=True)
    assert all_files(tmp_path / "corpus") == before
    with pytest.raises(UserError, match="lies in the output folder"):
        take(prefix, output=tmp_path / "m", overwrite=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "tokenizer").mkdir()
    with pytest.raises(UserError, match=r"is not empty and holds no corpus \(tokenizer\)"):
        take(prefix, output=tmp_path / "full")
    prepare(write_jsonl("text.jsonl", ["The old miller counts."]), output=tmp_path / "ours")
    with pytest.raises(UserError, match="holds a corpus with shards of its own"):
        take(prefix, output=tmp_path / "ours", overwrite=True)


def test_an_adoption_that_was_killed_before_its_end_can_be_made_again(take, tmp_path):
    prefix = write_pair(tmp_path / "m" / "x", made_up(3))
    take(prefix)
    whole = all_files(tmp_path / "corpus")
    (tmp_path / "corpus" / "corpus.json").unlink()
    (tmp_path / "corpus" / ".tokenizer.1234.partial").mkdir()
    with pytest.raises(UserError, match="Name another folder"):
        take(prefix)
    take(prefix, overwrite=True)
    assert all_files(tmp_path / "corpus") == whole
    assert not list((tmp_path / "corpus").glob(".tokenizer*"))
    (tmp_path / "corpus" / "corpus.json").unlink()
    with pytest.raises(UserError, match="Name another folder"):
        take(prefix, overwrite=True, mask_token="id:5")


def test_a_tokenizer_in_the_folder_that_is_replaced_may_be_the_one(take, tmp_path):
    prefix = write_pair(tmp_path / "m" / "x", made_up(3))
    fingerprint = take(prefix).tokenizer.fingerprint
    again = adopt([str(prefix)], tmp_path / "corpus", tokenizer=str(tmp_path / "corpus" / "tokenizer"), overwrite=True)
    assert again.tokenizer.fingerprint == fingerprint == Corpus(tmp_path / "corpus").fingerprint


def test_a_pair_that_changed_since_is_noticed(take, tmp_path):
    prefix = write_pair(tmp_path / "m" / "x", made_up(30))
    take(prefix)
    write_pair(prefix, made_up(31))
    with pytest.raises(CorpusError, match=r"m/x\.bin is damaged"):
        Corpus(tmp_path / "corpus")
    os.remove(f"{prefix}.bin")
    with pytest.raises(CorpusError, match=r"m/x\.bin cannot be read"):
        Corpus(tmp_path / "corpus")


def test_what_preprocess_wrote_can_be_adopted(take, tmp_path, prepare, write_jsonl):
    """The same fingerprint, documents and ids, whichever way the corpus came."""
    prepare(write_jsonl("text.jsonl", ["The old miller counts.", "A young fox paints."]), output=tmp_path / "ours")
    shutil.move(tmp_path / "ours" / "shard-00000.bin", tmp_path / "p.bin")
    shutil.move(tmp_path / "ours" / "shard-00000.idx", tmp_path / "p.idx")
    found = take(tmp_path / "p")
    assert (found.manifest.documents, found.num_without_end) == (2, 0)


def test_the_command(toolkit, tmp_path, tokenizer_folder, megatron):
    options = ("--tokenizer", tokenizer_folder, "--output", tmp_path / "corpus")
    code, out, err = toolkit("adopt", *megatron, *options)
    assert (code, err) == (0, "")
    assert "2 pairs adopted, nothing copied: 90 documents, " in out
    assert toolkit("verify", tmp_path / "corpus")[0] == 0
    code, out, _ = toolkit("inspect", tmp_path / "corpus", "--rows", 1, "--set", "data.sequence_length=64")
    assert code == 0
    assert "90 in 2 shards" in out
    code, _, err = toolkit("adopt", *megatron, *options)
    assert (code, err.count("error: ")) == (2, 1)


def test_mutated_pairs_are_refused_or_read(tmp_path):
    """600 changes to an index or to tokens: an error of ours, or documents that are there."""
    prefix = write_pair(tmp_path / "m" / "x", made_up(30, sentences=3))
    generator, outcomes, ids = np.random.default_rng(0), set(), FrameIds(front=(1,), back=(EOS,), last=(2,))
    for ending in ("idx", "bin"):
        path = Path(f"{prefix}.{ending}")
        intact = path.read_bytes()
        for _ in range(300):
            path.write_bytes(mutated(intact, generator))
            try:
                entry, frames, _ = examine_pair(prefix, lambda _: None, vocabulary_size=384, end_id=EOS, frame_ids=ids)
                outcomes.add("read")
                assert frames.total() <= entry.documents
            except CorpusError:
                outcomes.add("refused")
        path.write_bytes(intact)
    assert outcomes == {"read", "refused"}
