import dataclasses
import io
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from toolkit.workflows.quickstart.evaluations import bag_of_words_accuracy
from toolkit.workflows.quickstart.page import minutes_text, render, summary

VOID = {"meta", "br", "img", "link"}


class _Balance(HTMLParser):
    """Checks that tags close in order; collects text and what a page may load."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.loads = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href") and tag != "a"]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def _read(html):
    page = _Balance()
    page.feed(html)
    assert page.open == []
    return page


def _text(html):
    return re.sub(r"\s+", " ", "".join(_read(html).text))


def test_the_page_is_whole_and_loads_nothing(make_facts):
    html = render(make_facts())
    assert all(source.startswith("data:image/svg+xml;base64,") for source in _read(html).loads)
    assert "<script" not in html
    assert not re.search(r"url\(|@import", html)


def test_it_says_what_the_contract_lists(undrawn, make_facts):
    text = _text(render(make_facts()))
    for words in (
        "not a reproduction of the paper",
        "200 steps of CLM, then 200 steps of MLM",
        "unigram baseline",
        "DeepSpeed, ZeRO-2, 2 ranks",
        "2 min 42 s",
        "toolkit train quickstart",
        "toolkit quickstart --compare",
        "checkpoints/step-00000200",
        "A & B, 2 cores",
        "CC BY-SA",
    ):
        assert words in text, words


def test_losses_before_and_after_each_phase(undrawn, make_facts):
    """The made-up losses fall in straight lines from (9.04, 8.98) to (6.04, 5.84)."""
    rows = re.findall(r"<tr[^>]*><th>(.*?)</th>(.*?)</tr>", render(make_facts()))
    losses = {name: re.findall(r">([\d.]+)<", cells) for name, cells in rows}
    assert losses["before the first step"] == ["9.04", "8.98"]
    assert losses["after phase 1, CLM (step 200)"] == ["7.54", "7.41"]
    assert losses["after phase 2, MLM (step 400)"] == ["6.04", "5.84"]
    assert losses["unigram baseline"] == ["7.23", "7.25"]


def test_points_over_the_twins_and_the_majority(undrawn, make_facts):
    """77.0 against the mean of 65, 66 and 70, and against 63; one standard deviation of 1,417 answers is 1.1."""
    text = _text(render(make_facts()))
    assert "+10.0 points over the mean of the 3 twins (67.0%)" in text
    assert "+14.0 over the most frequent" in text
    assert "about 1.1 points" in text
    assert "bag-of-words baseline70.0%" in text


def test_a_worse_model_is_reported_as_worse(undrawn, make_facts):
    facts = make_facts()
    worse = facts.result.model_copy(update={"test": {"accuracy": 0.60}})
    text = _text(render(dataclasses.replace(facts, result=worse)))
    assert "-7.0 points over the mean" in text


def test_masked_words_are_escaped_and_counted(undrawn, make_facts):
    html = render(make_facts())
    assert "<b>" not in html.replace("<b></b>", "")
    assert "&lt;b&gt;" in html
    text = _text(html)
    assert "She was born <in> London." in text
    assert "the masked word in 1 of 2" in text
    assert "&lt;1%" in html


def test_the_comparison_is_there_when_asked_for(undrawn, make_facts, mlm_only_metrics):
    assert "Does CLM first help?" not in _text(render(make_facts()))
    text = _text(render(make_facts(mlm_only=mlm_only_metrics)))
    assert "Does CLM first help?" in text
    assert "ends lower on masked tokens of held-out text: 5.84 against 6.47 nats, a difference of 0.63" in text
    assert "toolkit quickstart --compare" not in text


def test_a_comparison_that_goes_the_other_way_says_so(undrawn, make_facts, mlm_only_metrics):
    better = tuple(
        line | {"eval_loss": {"clm": 9.0, "mlm": 5.0}} if "eval_loss" in line else line for line in mlm_only_metrics
    )
    assert "does not end lower" in _text(render(make_facts(mlm_only=better)))


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (179.6, "3 min 00 s")]
)
def test_durations(seconds, words):
    assert minutes_text(seconds) == words


def test_the_terminal_gets_the_numbers_too(make_facts, mlm_only_metrics):
    screen = Console(width=100, record=True, file=io.StringIO())
    screen.print(summary(make_facts(mlm_only=mlm_only_metrics)))
    lines = screen.export_text().splitlines()
    assert any(line.split() == ["total", "2", "min", "42", "s", "5", "min", "10", "s"] for line in lines)
    assert any("held-out MLM loss" in line and "5.84" in line and "8.98" in line for line in lines)
    assert any("with MLM only" in line and "6.47" in line for line in lines)
    assert any("test accuracy" in line and "77.0%" in line and "67.0%" in line and "63.0%" in line for line in lines)


def test_the_bag_of_words_baseline_is_scored_on_the_test_file(tmp_path):
    """Four test sentences, one of which says the opposite of its words."""
    rows = {
        "train": [("red apple", "fruit"), ("green apple", "fruit"), ("red car", "car"), ("green car", "car")],
        "validation": [("apple", "fruit"), ("car", "car")],
        "test": [("apple", "fruit"), ("old apple", "fruit"), ("car", "car"), ("my car", "fruit")],
    }
    files = {}
    for split, labelled in rows.items():
        files[split] = tmp_path / f"{split}.tsv"
        files[split].write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in labelled))
    assert bag_of_words_accuracy(files) == 0.75
