"""Which documents are left out: words and n-grams, near-duplicates, test texts."""

import csv
import json
import random
import string
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.core.errors import UserError
from toolkit.preprocess.screening.grams import hash_grams, hash_words
from toolkit.preprocess.screening.near_duplicates import _band_shape, first_of_groups, sign
from toolkit.preprocess.screening.test_texts import TestTexts

SIGNED = [[923631934, 1306134733, 134379201], [3237686401, 3824520654, 4007297563]]
WORDS = [
    f"{first}{second}" for first in string.ascii_lowercase for second in ("a", "lonber", "ooooooooooooooooooooooo")
]


def text_of(seed: int, num_words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))


def grams_of(text: str, length: int) -> list[int]:
    [(_, grams, counts)] = hash_grams(hash_words([text]), [length])
    assert counts.tolist() == [grams.size]
    return grams.tolist()


class TestWords:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("Don't stop—now!", "dont stop now"),
            ("it 's what they do n't , can not and 'll say -- ever", "it's what they don't, cannot and'll say--ever"),
            ("It \u2019S a well @-@ known 1 @,@ 000 @.@ 5", "it's a well-known 1,000.5"),
            ("in\u200bvi\u00adsi\u2060b\U000e0041le \ufeffx\U0001f600", "invisible x\U0001f600"),
            ("  “Quoted”,\tÉTÉ\u00a0x \n", "quoted été x"),
            ("well-known $5 e.g.", "wellknown 5 eg"),
            ("日本語 ok", "日 本 語 ok"),
            ("a日b", "a 日 b"),
            ("\U0001d4b3 x", "\U0001d4b3 x"),
        ],
    )
    def test_are_lower_case_and_without_punctuation(self, text, words):
        assert hash_words([text]).hashes.tolist() == hash_words([words]).hashes.tolist()
        assert hash_words([text]).counts_N.tolist() == hash_words([words]).counts_N.tolist()

    def test_ascii_is_read_like_any_other_text(self):
        text = "".join(map(chr, range(1, 128))) + " Abc\x1cd"
        assert hash_words([text]).hashes.tolist() == hash_words([text + " é"]).hashes.tolist()[:-1]

    def test_differ_by_any_byte_and_by_length(self):
        words = ["x" * size for size in (*range(1, 66), 100, 101)]
        words += ["x" * at + "y" + "x" * (size - at) for size in (63, 150, 70_000) for at in (*range(64), 90, 99)]
        assert len(set(hash_words([" ".join(words)]).hashes.tolist())) == len(words)

    def test_of_a_text_do_not_depend_on_those_beside_it(self):
        texts = ["one two", "", "...", "three é", "four"]
        together, apart = hash_words(texts), [hash_words([text]) for text in texts]
        assert together.hashes.tolist() == [word for words in apart for word in words.hashes.tolist()]
        assert together.counts_N.tolist() == [2, 1, 1, 2, 1]
        assert hash_words([]).counts_N.size == 0

    def test_a_text_without_a_word_stands_for_itself(self):
        one, other, same = (hash_words([text]).hashes.tolist() for text in ("...", "!", "..."))
        assert one == same != other


class TestGrams:
    def test_are_equal_where_their_words_are(self):
        words = ["a", "b", "c", "d", "a", "b", "c", "d", "e"]
        for length in (1, 2, 5):
            grams = grams_of(" ".join(words), length)
            named = [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]
            assert len(grams) == len(named)
            assert len(set(zip(grams, named, strict=True))) == len(set(grams)) == len(set(named))

    def test_order_counts(self):
        assert grams_of("a b", 2) != grams_of("b a", 2)

    def test_several_lengths_are_those_of_each(self):
        texts = [text_of(seed, seed) for seed in range(1, 16)]
        for length, grams, counts in hash_grams(hash_words(texts), [13, 8, 5]):
            apart = [grams_of(text, length) for text in texts]
            assert grams.tolist() == [gram for its in apart for gram in its]
            assert counts.tolist() == list(map(len, apart))

    def test_a_short_text_has_one_that_no_longer_text_has(self):
        assert len(grams_of("a b", 5)) == 1
        assert grams_of("a b", 5) != grams_of("a b c", 5)
        assert grams_of("a b", 5) != grams_of("a", 5)


class TestNearDuplicates:
    def test_signatures_do_not_depend_on_the_batch(self):
        texts = [text_of(seed, 3 + 40 * seed) for seed in range(8)]
        together = sign(hash_words(texts))
        assert together.shape == (8, 128)
        assert np.array_equal(together, np.concatenate([sign(hash_words([text])) for text in texts]))

    def test_signatures_stay_what_they_are(self):
        # Groups of one corpus may be read by machines of several kinds, and with other versions of rensa.
        found = sign(hash_words([text_of(1, 300), "Déjà vu."]))
        assert found[:, :3].tolist() == SIGNED

    def test_the_similarity_is_that_of_their_grams(self):
        texts = [text_of(seed, 400) for seed in range(40)]
        changed = [f"{text.rsplit(' ', 60)[0]} {text_of(seed + 100, 60)}" for seed, text in enumerate(texts)]
        expected = [
            len(one & other) / len(one | other)
            for one, other in ((set(grams_of(a, 5)), set(grams_of(b, 5))) for a, b in zip(texts, changed, strict=True))
        ]
        found = (sign(hash_words(texts)) == sign(hash_words(changed))).mean(axis=1)
        assert abs(found.mean() - np.mean(expected)) < 0.02
        assert np.abs(found - expected).max() < 0.15

    def first_of(self, rows: list[list[int]], similarity: float = 0.8, parts: int = 1, **kept: list[bool]) -> list[int]:
        signatures = np.array([np.resize(row, 128) for row in rows], np.uint32).reshape(-1, 128)
        looked_at = np.array(kept.get("kept", [True] * len(rows)))
        return first_of_groups(np.array_split(signatures, parts), looked_at, similarity).tolist()

    def test_the_first_of_each_group(self):
        one, two = list(range(128)), list(range(500, 628))
        near, nearer = [*range(110), *range(900, 918)], [*range(92), *range(700, 718), *range(900, 918)]
        rows = [two, one, near, two, nearer, one]
        for parts in (1, 2, 6):
            # `nearer` is like `near` alone, and hence of the group of `one`.
            assert self.first_of(rows, parts=parts) == [0, 1, 1, 0, 1, 1]
        assert self.first_of(rows, 0.9) == [0, 1, 2, 0, 4, 1]

    def test_what_is_not_looked_at_is_alone(self):
        assert self.first_of([[1], [1], [1]], kept=[False, True, True]) == [0, 1, 1]
        assert self.first_of([]) == []

    def test_bands_compare_99_percent_of_the_pairs_at_the_similarity(self):
        assert [_band_shape(similarity) for similarity in (0.5, 0.8, 0.9, 1.0)] == [
            (3, 42),
            (6, 21),
            (10, 12),
            (128, 1),
        ]

    def test_edited_texts_are_found_and_others_are_not(self):
        texts = [text_of(seed, 500) for seed in range(30)]
        edited = [" ".join(word if at % 250 else "edited" for at, word in enumerate(text.split())) for text in texts]
        signatures = sign(hash_words(texts + edited))
        firsts = first_of_groups([signatures], np.ones(60, bool), 0.8)
        assert firsts.tolist() == [*range(30), *range(30)]


LONG = "the quick brown fox jumps over the lazy dog while nine small birds look on"
SHORT = "who wrote the long poem about the fall"


class TestOfTests:
    def read(self, *paths: Path | str, **given: str) -> TestTexts:
        return TestTexts([*map(str, paths)], **{"txt_documents": "file", "delimiter": ",", **given})

    def holds(self, tests: TestTexts, *texts: str) -> list[bool]:
        return (tests.find(hash_words(texts)) >= 0).tolist()

    def test_13_words_in_a_row_of_a_long_text_or_all_of_a_short_one(self, tmp_path):
        (tmp_path / "t.jsonl").write_text(json.dumps({"q": SHORT, "d": [{"a": LONG}], "label": "never mind this"}))
        tests = self.read(tmp_path / "t.jsonl")
        assert (len(tests.texts), tests.num_short) == (2, 1)
        words = LONG.split()
        inside = f"Well: {' '.join(words[1:14]).upper()}, they said."
        assert self.holds(tests, inside, " ".join(words[:12]), " ".join(words[3:]), LONG) == [True, False, False, True]
        asked = f"Tell me, {SHORT}?"
        assert self.holds(tests, asked, SHORT.replace("fall", "rise"), SHORT, "never mind this") == [
            *(True, False, True),
            False,
        ]
        assert self.holds(tests) == []

    def test_every_string_of_every_format(self, tmp_path):
        long_other = " ".join(reversed(LONG.split()))
        pq.write_table(pa.table({"id": [1], "s": [{"x": [LONG]}], "t": [SHORT]}), tmp_path / "a.parquet")
        (tmp_path / "b.json").write_text(json.dumps({"data": [{"p": [{"c": LONG}]}], "q": SHORT}))
        (tmp_path / "c.csv").write_text(f'id,x\n1,"{LONG},\nand more"\n2,{SHORT}\n')
        (tmp_path / "d.tsv").write_text(f'1\t"{LONG}\n2\t{SHORT}\n')
        (tmp_path / "e.txt").write_text(f"{LONG}\n{SHORT}")
        (tmp_path / "f.json").write_text(f"{json.dumps({'x': LONG})}\n\n{json.dumps([SHORT])}\n")
        for name in ("a.parquet", "b.json", "c.csv", "d.tsv", "f.json"):
            assert self.holds(self.read(tmp_path / name), LONG, SHORT, long_other) == [True, True, False], name
        assert csv.field_size_limit() > 1 << 20, "other readers of CSV have what this one set"
        assert self.holds(self.read(tmp_path / "e.txt"), LONG, SHORT) == [True, False]
        assert self.holds(self.read(tmp_path / "e.txt", txt_documents="line"), LONG, SHORT) == [True, True]
        assert self.holds(self.read(tmp_path), LONG, SHORT, long_other) == [True, True, False]

    def test_json_is_read_as_in_a_source(self, tmp_path):
        """With a byte order mark, NaN, half of a surrogate pair, and lists as deep as sources may have."""
        (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + f'{{"x": NaN, "y": "\\ud800", "q": "{LONG}"}}\n'.encode())
        (tmp_path / "b.json").write_text("[" * 1020 + f'"{LONG}"' + "]" * 1020)
        (tmp_path / "c.json").write_text(json.dumps([{"q": SHORT}, {"q": LONG}], indent=1))
        kept = pa.array([[("any", LONG)]], pa.map_(pa.string(), pa.string()))
        pq.write_table(pa.table({"map": kept, "bytes": [SHORT.encode()]}), tmp_path / "d.parquet")
        for name in ("a.jsonl", "b.json", "c.json", "d.parquet"):
            assert self.holds(self.read(tmp_path / name), LONG) == [True], name
        assert self.holds(self.read(tmp_path / "d.parquet"), SHORT) == [True]
        assert self.read(tmp_path / "c.json").texts == [("c.json", 1, SHORT), ("c.json", 2, LONG)]

    def test_a_column_alone(self, tmp_path):
        rows = [{"question": SHORT, "prompt": {"text": LONG}}]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
        (tmp_path / "b.json").write_text(json.dumps({"data": rows}))
        (tmp_path / "c.tsv").write_text(f"question\tprompt\n{SHORT}\t{LONG}\n")
        for name in ("a.parquet", "b.json", "c.tsv"):
            path = tmp_path / name
            assert self.holds(self.read(f"{path}:question"), LONG, SHORT) == [False, True]
            assert self.holds(self.read(f"{path}:prompt"), LONG, SHORT) == [True, False]
            assert self.holds(self.read(f"{path}:prompt", f"{path}:question"), LONG, SHORT) == [True, True]
            with pytest.raises(UserError, match=rf"{name}:answer: no text in a column 'answer'; found: '\w+'"):
                self.read(f"{path}:answer")
        assert self.holds(self.read(f"{tmp_path}:question"), LONG, SHORT) == [False, True]
        (tmp_path / "d.txt:x.txt").write_text(LONG)
        assert self.holds(self.read(tmp_path / "d.txt:x.txt"), LONG) == [True]

    def test_csv_is_split_at_the_delimiter_of_the_sources(self, tmp_path):
        halves = LONG.replace("over", "over,"), SHORT.replace("poem", "poem,")
        (tmp_path / "a.csv").write_text("x;y\n{};{}\n".format(*halves))
        assert self.holds(self.read(tmp_path / "a.csv", delimiter=";"), *halves) == [True, True]
        assert self.holds(self.read(f"{tmp_path / 'a.csv'}:y", delimiter=";"), *halves) == [False, True]

    def test_frequent_ones_are_reported(self, tmp_path, capsys):
        (tmp_path / "a.jsonl").write_text(f"{json.dumps(SHORT)}\n{json.dumps([LONG, LONG])}\n")
        tests = self.read(tmp_path / "a.jsonl")
        tests.report_frequent(Counter({0: 10, 1: 11}))
        found = " ".join(capsys.readouterr().out.split())
        assert f"11 documents held one test text (a.jsonl, row 2): {LONG!r}" in found
        assert found.count("held one test text") == 1
        assert "--without FILE:COLUMN" in found
        tests.report_frequent(Counter({0: 10}))
        assert capsys.readouterr().out == ""

    def test_what_is_looked_for_has_a_digest(self, tmp_path):
        digests = set()
        for name, texts in (("a", [LONG, SHORT]), ("b", [SHORT, LONG]), ("c", [LONG, SHORT + " x"])):
            (tmp_path / name).mkdir()
            (tmp_path / name / "t.jsonl").write_text("\n".join(map(json.dumps, texts)))
            digests |= {self.read(tmp_path / name / "t.jsonl").digest for _ in range(2)}
        assert len(digests) == 3

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("t.jsonl", b'{"x": "too short"}', "no string of 8 words or more"),
            ("t.jsonl", b'{"x": 1}\n{"x": ', "line 2: not valid JSON"),
            ("t.json", b'[\n1,\n{"x" 3}]', "line 3: not valid JSON"),
            ("t.csv", b"\xff\xfe", "not valid UTF-8 at byte 0"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named(self, tmp_path, name, content, message):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message) as error:
            self.read(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
