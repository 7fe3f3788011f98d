import pytest
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

from toolkit.finetuning.tc.tag_schemes import (
    TagScheme,
    detect_scheme,
    entities_of,
    is_tag,
    rewritten,
    scorable,
    tags_of,
)

# Two persons side by side, a place of three tokens, and one of a single token at the end.
ENTITIES = [("PER", 0, 0), ("PER", 1, 2), ("LOC", 4, 6), ("ORG", 7, 7)]
WRITTEN = {
    TagScheme.IOB1: "I-PER B-PER I-PER O I-LOC I-LOC I-LOC I-ORG",
    TagScheme.IOB2: "B-PER B-PER I-PER O B-LOC I-LOC I-LOC B-ORG",
    TagScheme.BIOES: "S-PER B-PER E-PER O B-LOC I-LOC E-LOC S-ORG",
    TagScheme.BILOU: "U-PER B-PER L-PER O B-LOC I-LOC L-LOC U-ORG",
}
by_scheme = pytest.mark.parametrize("scheme", WRITTEN)


@by_scheme
def test_entities_are_written_and_read_in_each_scheme(scheme):
    tags = WRITTEN[scheme].split()
    assert tags_of(ENTITIES, 8, scheme) == tags
    assert entities_of(tags) == ENTITIES
    assert detect_scheme([tags, ["O"]]) is scheme


@by_scheme
@pytest.mark.parametrize("target", WRITTEN)
def test_each_scheme_becomes_every_other(scheme, target):
    assert rewritten(WRITTEN[scheme].split(), target) == WRITTEN[target].split()


@by_scheme
def test_seqeval_finds_the_same_entities_in_what_is_scored(scheme):
    assert get_entities(scorable(WRITTEN[scheme].split())) == ENTITIES
    assert f1_score([scorable(WRITTEN[scheme].split())], [WRITTEN[TagScheme.IOB2].split()]) == 1.0


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        ("O O", TagScheme.IOB2),
        ("I-PER", TagScheme.IOB1),
        ("O I-PER I-LOC", TagScheme.IOB1),
        ("B-PER", TagScheme.IOB2),
        # An entity that begins with I-, in a file where others begin with B- out of need and without.
        ("I-PER | B-LOC", TagScheme.IOB2),
        ("I-PER B-PER | I-LOC", TagScheme.IOB1),
        ("I-PER B-LOC", TagScheme.IOB2),
        ("B-PER I-PER | S-LOC", TagScheme.BIOES),
        ("U-PER", TagScheme.BILOU),
        ("O PER | LOC", TagScheme.IO),
    ],
)
def test_the_scheme_is_detected(sentences, scheme):
    assert detect_scheme([sentence.split() for sentence in sentences.split(" | ")]) is scheme


def test_neighbours_of_one_type_are_one_entity_in_io():
    tags = ["PER", "PER", "O", "LOC", "PER"]
    assert rewritten(tags, TagScheme.IOB2) == ["B-PER", "I-PER", "O", "B-LOC", "B-PER"]
    assert rewritten(["B-PER", "I-PER", "O", "B-LOC", "B-PER"], TagScheme.IO) == tags


def test_the_end_of_a_sentence_is_no_neighbour():
    assert detect_scheme([["I-PER"], ["B-PER"]]) is TagScheme.IOB2


def test_an_inner_tag_that_continues_nothing_begins_an_entity_as_in_conlleval():
    assert rewritten(["O", "I-PER", "I-PER", "I-LOC"], TagScheme.IOB2) == ["O", "B-PER", "I-PER", "B-LOC"]


@pytest.mark.parametrize("text", ["O", "B-PER", "I-ORG-COMPANY", "E-x", "S-x", "L-x", "U-x"])
def test_tags(text):
    assert is_tag(text)


@pytest.mark.parametrize("text", ["", "o", "PER", "B-", "B", "X-PER", "b-per", "O-PER", "-", "NN"])
def test_what_is_not_a_tag(text):
    assert not is_tag(text)


def test_a_type_may_hold_hyphens():
    assert entities_of(["B-ORG-A", "I-ORG-A", "I-ORG-B"]) == [("ORG-A", 0, 1), ("ORG-B", 2, 2)]
