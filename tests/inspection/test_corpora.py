import pytest

import tokenization
from toolkit.core.errors import CorpusError, NoRowError, SettingsError
from toolkit.data import Corpus, DataSettings, open_rows
from toolkit.inspection import inspect
from toolkit.inspection.corpora import (
    Segment,
    histogram,
    load_tokenizer,
    measure_lengths,
    read_segments,
    row_settings,
    row_view,
    statistics,
)

END = "<|endoftext|>"


@pytest.fixture
def corpus(prepare, write_jsonl, tmp_path):
    """Documents of 2, 3, 5, 5, 9 and 17 tokens in two shards; q is one token."""
    prepare(
        write_jsonl("a.jsonl", ["q", "qq", "qqqq", "qqqq"]),
        write_jsonl("b.jsonl", ["q" * 8, "q" * 16, ""]),
        shard_tokens=15,
    )
    return Corpus(tmp_path / "corpus")


def test_lengths_are_counted_over_all_shards(corpus):
    lengths = measure_lengths(corpus)

    assert (lengths.shortest, lengths.longest) == (2, 17)
    assert {power: count for power, count in enumerate(lengths.powers.tolist()) if count} == {2: 2, 3: 2, 4: 1, 5: 1}
    assert [lengths.percentile(percent) for percent in (1, 50, 51, 100)] == [2, 5, 5, 17]


def test_a_row_is_read_as_its_decoded_segments(corpus):
    tokenizer = load_tokenizer(corpus)
    settings = DataSettings(train=str(corpus.path), sequence_length=10, min_length=2)
    rows = open_rows(corpus, settings, seed=0)

    segments = [segment for row in range(rows.num_rows) for segment in read_segments(rows, tokenizer, row=row)]

    texts = sorted(segment.text for segment in segments if segment.number)
    assert texts == sorted(
        [f"q{END}", f"qq{END}", f"qqqq{END}", f"qqqq{END}", f"{'q' * 8}{END}", "q" * 10, f"{'q' * 6}{END}"]
    )
    assert sum(segment.num_tokens for segment in segments) == 10 * rows.num_rows
    assert all(
        segment.num_tokens == len(tokenizer.encode_batch([segment.text])[0]) - 1
        for segment in segments
        if segment.number
    )


def test_the_histogram_has_a_line_for_each_power_of_two(corpus):
    table = histogram(measure_lengths(corpus))
    tokens, documents, bars = (list(column.cells) for column in table.columns)

    assert tokens == ["2 - 3", "4 - 7", "8 - 15", "16 - 31"]
    assert documents == ["2", "2", "1", "1"]
    assert [len(str(bar)) for bar in bars] == [40, 40, 20, 20]


def test_statistics_say_what_the_corpus_holds(corpus):
    table = statistics(corpus, measure_lengths(corpus))
    found = dict(zip(table.columns[0].cells, table.columns[1].cells, strict=True))

    assert found["documents"] == "6 in 2 shards"
    assert found["tokens"] == "41 (uint16)"
    assert found["tokens a document"] == "2 to 17, mean 6.8; 10 % up to 2, 50 % up to 5, 90 % up to 17, 99 % up to 17"
    assert found["special ids"] == "eos 0, pad 1, mask 2"
    assert found["skipped rows"] == "1 empty"


def test_segments_are_marked_without_a_terminal_and_coloured_on_one():
    view = row_view(7, [Segment(1, 3, "a\nb\x1b"), Segment(2, 1, "[bold]c"), Segment(0, 4, "<|pad|>")])

    assert view.plain.splitlines() == [
        "Row 7: 4 tokens in 2 segments, 4 padding",
        "  [1] 3 tokens: a\\nb\\x1b",
        "  [2] 1 token: [bold]c",
        "  [padding] 4 positions",
    ]
    styles = {str(span.style) for span in view.spans}
    assert {"not bold cyan", "not bold yellow"} <= styles


def test_long_segments_are_shortened_in_the_middle():
    header, line = row_view(0, [Segment(1, 1, "a" * 1000 + "b" * 1000)]).plain.splitlines()

    assert header == "Row 0: 1 tokens in 1 segment, 0 padding"
    assert line == f"  [1] 1 token: {'a' * 200} [...] {'b' * 200}"


def test_another_tokenizer_in_the_folder_is_refused(corpus):
    tokenization.load(corpus.tokenizer_folder, mask_token="token:q").save(corpus.tokenizer_folder)

    with pytest.raises(CorpusError, match="is not the tokenizer that"):
        load_tokenizer(corpus)


def test_overrides_are_toml_else_strings(tmp_path):
    settings = row_settings(str(tmp_path), ["data.windows=blocks", "data.sequence_length=64", 'data.shuffle="blocks"'])

    assert (settings.windows, settings.sequence_length, settings.shuffle) == ("blocks", 64, "blocks")
    assert settings.train == str(tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.window=blocks", r"unknown key 'data\.window'\. Did you mean 'windows'"),
        ("data.windows=rows", r"data\.windows: expected 'documents'"),
        ("train.steps=5", r"only data\.\* can be set here"),
        ('data.train=[{path="a", weight=1}]', "Inspect the corpora of a blend one by one"),
        ("data.windows", r"not of the form key=value"),
    ],
)
def test_a_wrong_override_is_explained(tmp_path, override, message):
    with pytest.raises(SettingsError, match=message):
        row_settings(str(tmp_path), [override])


def test_rows_are_numbered_over_the_shards(corpus):
    rows = open_rows(corpus, DataSettings(train=str(corpus.path), sequence_length=8, windows="blocks"), seed=0)
    (segment,) = read_segments(rows, load_tokenizer(corpus), row=1)

    # The first shard has 15 tokens, one row and a tail.
    assert segment == Segment(1, 8, load_tokenizer(corpus).decode(corpus.shards[1].tokens[:8]))


def test_a_corpus_too_small_for_a_row_shows_what_it_holds(prepare, write_jsonl, tmp_path, capsys):
    """Its source has a name that would colour a terminal."""
    prepare(write_jsonl("\x1b[31mred.jsonl", ["q", "qq", b"no JSON"]), max_bad_fraction=0.5)

    inspect(tmp_path / "corpus", num_rows=3)

    said = capsys.readouterr().out
    assert "No rows to show: " in said
    assert "data.min_length=12" in said
    assert "\\x1b[31mred.jsonl" in said
    assert "\x1b" not in said
    with pytest.raises(NoRowError, match=r"data\.min_length=11"):
        inspect(tmp_path / "corpus", num_rows=3, overrides=["data.min_length=11"])


def test_one_in_object_storage_is_shown_as_if_it_were_here(corpus, toolkit, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ("--set", "data.sequence_length=10", "--set", "data.min_length=2")
    here, there = (toolkit("inspect", place, *words) for place in (corpus.path, f"file://{corpus.path}"))
    assert there == here
    assert here[0] == 0
    assert toolkit("inspect", f"file://{tmp_path}/none")[0] == 2
