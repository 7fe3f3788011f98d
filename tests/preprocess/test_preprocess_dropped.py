"""Documents that are left out of a corpus as near-duplicates, or for the test texts that they hold."""

import gzip
import json
import random
import shutil

import pytest

from tests.preprocess.test_preprocess_groups import ended, in_child
from tests.preprocess.test_preprocess_restart import all_files, go_on, killed_behind, run_and_die
from toolkit.core.errors import SettingsError, UserError
from toolkit.data import read_manifest, verify_corpus
from toolkit.preprocess import tasks
from toolkit.preprocess.screening import documents
from toolkit.preprocess.writer import groups
from toolkit.work import claims

NEAR, TEST = "near-duplicate", "holds a test text"
GIVEN = {"near_duplicates": 0.8, "shard_tokens": 400, "max_bad_fraction": 1.0}


def text_of(seed, num_words=60):
    return " ".join("".join(random.Random(f"{seed} {at}").choices("abcdefgh", k=4)) for at in range(num_words))


def edited(seed):
    return text_of(seed) + " end"


@pytest.fixture
def sources(write_jsonl):
    """Three files: texts 0 to 5, some twice; rows 2 and 4 of the first are no documents."""
    return [
        write_jsonl("a.jsonl", [text_of(0), b"[]", text_of(1), "", edited(0)]),
        write_jsonl("b.jsonl", [text_of(2), text_of(1).upper(), text_of(3)]),
        write_jsonl("c.jsonl", [edited(3), text_of(4), text_of(0), text_of(5)]),
    ]


@pytest.fixture
def tests(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "t.tsv").write_text(f"1\t{' '.join(text_of(1).split()[20:40])}\n2\tshort\n")
    return tmp_path / "tests"


def dropped(output):
    return [json.loads(line) for line in (output / "dropped.jsonl").read_text().splitlines()]


def test_all_but_the_first_of_each_group_are_left_out(prepare, sources, tmp_path):
    result = prepare(*sources, **GIVEN)
    output = tmp_path / "corpus"

    def near(source, row, first, first_row):
        return {"source": source, "row": row, "reason": NEAR, "of": {"source": first, "row": first_row}}

    assert dropped(output) == [
        near("a.jsonl", 5, "a.jsonl", 1),
        near("b.jsonl", 2, "a.jsonl", 3),
        near("c.jsonl", 1, "b.jsonl", 3),
        near("c.jsonl", 3, "a.jsonl", 1),
    ]
    assert result.manifest.documents == 6
    assert result.manifest.skipped == {"empty": 1, NEAR: 4, "wrong type": 1}
    assert result.manifest.dropped.sources == {"a.jsonl": {NEAR: 1}, "b.jsonl": {NEAR: 1}, "c.jsonl": {NEAR: 2}}
    assert read_manifest(output) == result.manifest
    assert sum(account.num_bad for account in result.tally.sources.values()) == 1
    assert not verify_corpus(output).damaged
    assert not verify_corpus(output).unexpected_files
    (output / "dropped.jsonl").write_text("{}")
    assert [finding.path.name for finding in verify_corpus(output).damaged] == ["dropped.jsonl"]


def test_the_rest_is_the_corpus_of_the_rest(prepare, sources, write_jsonl, tmp_path):
    prepare(*sources, **GIVEN)
    rest = [[text_of(0), b"[]", text_of(1), ""], [text_of(2), text_of(3)], [text_of(4), text_of(5)]]
    others = [write_jsonl(f"rest/{name}.jsonl", rows) for name, rows in zip("abc", rest, strict=True)]
    prepare(*others, output=tmp_path / "rest-corpus", shard_tokens=400, max_bad_fraction=1.0)
    found, expected = all_files(tmp_path / "corpus"), all_files(tmp_path / "rest-corpus")
    shards = {name for name in expected if name.startswith("shard-") and name.endswith(".bin")}
    assert len(shards) >= 3
    assert all(found[name] == expected[name] for name in shards)


def test_a_document_that_holds_a_test_text_is_no_duplicate(prepare, sources, tests, tmp_path):
    result = prepare(*sources, **GIVEN, without=(str(tests),))
    expected = {"a.jsonl": {NEAR: 1, TEST: 1}, "b.jsonl": {TEST: 1}, "c.jsonl": {NEAR: 2}}
    assert result.manifest.dropped.sources == expected
    of = {"source": "t.tsv", "row": 1, "text": " ".join(text_of(1).split()[20:40])}
    assert {"source": "b.jsonl", "row": 2, "reason": TEST, "of": of} in dropped(tmp_path / "corpus")
    assert result.manifest.documents == 5


def test_what_is_like_a_document_that_holds_a_test_text_stays(prepare, write_jsonl, tmp_path):
    words = text_of(9).split()
    (tmp_path / "t.txt").write_text(" ".join(words[20:33]))
    source = write_jsonl("d.jsonl", [" ".join(words), " ".join([*words[:26], "other", *words[27:]])])
    result = prepare(source, **{**GIVEN, "near_duplicates": 0.5}, without=(str(tmp_path / "t.txt"),))
    assert result.manifest.dropped.sources == {"d.jsonl": {TEST: 1}}
    assert result.manifest.documents == 1


def test_test_texts_alone(prepare, sources, tests, capsys):
    result = prepare(*sources, without=(str(tests),), max_bad_fraction=1.0)
    assert result.manifest.dropped.sources == {"a.jsonl": {TEST: 1}, "b.jsonl": {TEST: 1}}
    assert result.manifest.documents == 8
    assert "Looking for 1 test text; 3 strings of less than 8 words" in " ".join(capsys.readouterr().out.split())


def test_workers_and_groups_change_no_byte(prepare, sources, tests, tmp_path, monkeypatch):
    given = {**GIVEN, "without": (str(tests),), "holdout": 0.3}
    one = prepare(*sources, output=tmp_path / "one", workers=1, **given)
    prepare(*sources, output=tmp_path / "two", workers=2, **given)
    assert one.holdout.documents
    assert all_files(tmp_path / "two") == all_files(tmp_path / "one")
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    prepare(*sources, output=tmp_path / "groups", **given)
    assert (tmp_path / "groups" / "dropped.jsonl").read_bytes() == (tmp_path / "one" / "dropped.jsonl").read_bytes()


def test_killed_anywhere_it_ends_with_the_same_bytes(prepare, sources, tests, tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    given, number = {**GIVEN, "without": (str(tests),)}, 2
    prepare(*sources, output=tmp_path / "whole", **given)
    expected, output = all_files(tmp_path / "whole"), tmp_path / "killed"
    while not run_and_die(number, lambda: prepare(*sources, output=output, **given)):
        # Once more, a little later, where it takes up again.
        if not run_and_die(4, lambda: go_on(prepare, *sources, output=output, **given)):
            go_on(prepare, *sources, output=output, **given)
        assert all_files(output) == expected, number
        shutil.rmtree(output)
        number += 17
    assert number > 60


def test_two_commands_at_once_make_it_too(prepare, sources, tests, tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    monkeypatch.setattr(claims, "_SECONDS_BETWEEN_LOOKS", 0.02)
    given = {**GIVEN, "without": (str(tests),)}
    prepare(*sources, output=tmp_path / "whole", **given)
    children = [in_child(lambda: prepare(*sources, output=tmp_path / "shared", **given)) for _ in range(2)]
    assert 0 in [ended(child) for child in children]
    assert all_files(tmp_path / "shared") == all_files(tmp_path / "whole")


def test_other_sources_are_decided_on_again(prepare, sources, tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(b"no gzip")
    sources[1], content = packed, sources[1].read_bytes()
    for _ in range(2):
        with pytest.raises(UserError, match=r"could not read the source .*b\.jsonl\.gz"):
            prepare(*sources, **GIVEN)
    packed.write_bytes(gzip.compress(content))
    prepare(*sources, **GIVEN)
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    assert all_files(tmp_path / "corpus") == all_files(tmp_path / "whole")
    assert len(dropped(tmp_path / "corpus")) == 4


def test_a_group_is_written_again_where_other_documents_are_left_out_of_it(
    prepare, sources, write_jsonl, tmp_path, monkeypatch
):
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    items = tasks._items
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "_items", lambda corpus: items(corpus)[::-1])
        killed_behind(1, lambda: prepare(*sources, **GIVEN))
    assert list(groups.written_groups(tmp_path / "corpus")) == [2]
    # The third document of the last group is no longer a near-duplicate.
    write_jsonl("a.jsonl", [text_of(1), text_of(7), text_of(8)])
    prepare(*sources, **GIVEN)
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    assert all_files(tmp_path / "corpus") == all_files(tmp_path / "whole")


def test_an_unfinished_corpus_is_not_resumed_with_other_options(prepare, sources, tests, monkeypatch):
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    killed_behind(1, lambda: prepare(*sources, **GIVEN, without=(str(tests),)))
    with pytest.raises(UserError, match=r"(?s)--near-duplicates: 0.8 then, 0.9 now.*--without: [0-9a-f]{16} then, not"):
        prepare(*sources, **{**GIVEN, "near_duplicates": 0.9})
    monkeypatch.setattr(documents, "WORDS_VERSION", documents.WORDS_VERSION + 1)
    with pytest.raises(UserError, match=r"version of words: 1 then, 2 now"):
        prepare(*sources, **GIVEN, without=(str(tests),))


@pytest.mark.parametrize("given", [{"near_duplicates": 0.8}, {"without": ("tests",)}])
def test_a_limit_is_refused(prepare, sources, given):
    with pytest.raises(SettingsError, match="Leave out the limit"):
        prepare(*sources, limit_documents=5, **given)


def test_the_missing_extra_is_named(prepare, sources, monkeypatch):
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'encoder-pretraining-toolkit\[dedup\]'"):
        prepare(*sources, **GIVEN)


def test_a_bad_source_is_met_before_the_others_are_read_again(prepare, sources, write_jsonl, monkeypatch):
    sources.append(write_jsonl("d.jsonl", [b"{", text_of(6), b"["]))
    monkeypatch.setattr(tasks, "write_group", None)

    with pytest.raises(UserError, match=r"d\.jsonl has 2 bad of 3 rows: 2 rows broken JSON \(first row 1: "):
        prepare(*sources, **GIVEN)
