"""Tag schemes of entities: detection, conversion and scoring of IO, IOB1, IOB2, BIOES and BILOU.

| scheme | first token | inside | last | single |
|---|---|---|---|---|
| IO | the type only | the type | the type | the type |
| IOB1 | I-, or B- right after an entity of the same type | I- | I- | as a first token |
| IOB2 | B- | I- | I- | B- |
| BIOES | B- | I- | E- | S- |
| BILOU | B- | I- | L- | U- |

Entities are defined by seqeval's default mode, here as in the metric: as in conlleval, an I- that continues nothing
begins an entity, and so does a change of type.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support
from sklearn.metrics import accuracy_score, f1_score

OUTSIDE = "O"
Entity = tuple[str, int, int]
"""Type, first and last token."""

_TAG = re.compile(r"O|[BIESLU]-.+", re.DOTALL)
_BIOES_OF = str.maketrans("LU", "ES")


class TagScheme(StrEnum):
    """How tags mark the tokens of an entity."""

    IO = "IO"
    IOB1 = "IOB1"
    IOB2 = "IOB2"
    BIOES = "BIOES"
    BILOU = "BILOU"


_LETTERS = {
    TagScheme.IOB1: ("I", "I", "I", "I"),
    TagScheme.IOB2: ("B", "I", "I", "B"),
    TagScheme.BIOES: ("B", "I", "E", "S"),
    TagScheme.BILOU: ("B", "I", "L", "U"),
}
"""Letters of a first, inner, last and single token."""


def is_tag(text: str) -> bool:
    """True if a text is a tag of one of the schemes: O, or a letter, a hyphen and a type."""
    return _TAG.fullmatch(text) is not None


def has_letter(tag: str) -> bool:
    """True if a tag begins with a letter and a hyphen, with or without a type; tags of IO do not."""
    return re.match(r"[BIESLU]-", tag) is not None


def detect_scheme(sentences: Iterable[Sequence[str]]) -> TagScheme:
    """Return the scheme of the tags; raise `ValueError` if there are tags of both BIOES and BILOU.

    Tags without a letter and hyphen are IO: adjacent tokens of one type are one entity.
    Tags without E-, S-, L- and U- are IOB1 if at least one entity begins with I- and B- only follows an entity of its
    type; else IOB2, even if some entities begin with I-.
    """
    letters: set[str] = set()
    begins_with_i, b_is_iob1 = False, True
    for tags in sentences:
        before = OUTSIDE
        for tag in tags:
            if not is_tag(tag):
                return TagScheme.IO
            letters.add(tag[0])
            continues = before[1:] == tag[1:]
            begins_with_i |= tag[0] == "I" and not continues
            b_is_iob1 &= tag[0] != "B" or continues
            before = tag
    if letters & set("ES") and letters & set("LU"):
        raise ValueError("E- or S- tags (BIOES) beside L- or U- tags (BILOU)")
    if letters & set("ES"):
        return TagScheme.BIOES
    if letters & set("LU"):
        return TagScheme.BILOU
    return TagScheme.IOB1 if begins_with_i and b_is_iob1 else TagScheme.IOB2


def scorable(tags: Sequence[str]) -> list[str]:
    """Tags for seqeval's default mode: BILOU's letters become those of BIOES, and IO's tags get an I-."""
    return [tag[0].translate(_BIOES_OF) + tag[1:] if is_tag(tag) else f"I-{tag}" for tag in tags]


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Entities that the tags of a sentence mark, in order, whatever the scheme."""
    return [(kind, first, last) for kind, first, last in get_entities(scorable(tags))]


def tags_of(entities: Iterable[Entity], num_tokens: int, scheme: TagScheme) -> list[str]:
    """Tags of a sentence with these entities, which must be in order and not overlap."""
    tags = [OUTSIDE] * num_tokens
    if scheme is TagScheme.IO:
        for kind, first, last in entities:
            tags[first : last + 1] = [kind] * (last + 1 - first)
        return tags
    first_letter, inner, last_letter, single = _LETTERS[scheme]
    before: tuple[str, int] | None = None
    for kind, first, last in entities:
        letters = single if first == last else first_letter + inner * (last - first - 1) + last_letter
        if scheme is TagScheme.IOB1 and before == (kind, first - 1):
            letters = "B" + letters[1:]
        tags[first : last + 1] = [f"{letter}-{kind}" for letter in letters]
        before = kind, last
    return tags


def rewritten(tags: Sequence[str], scheme: TagScheme) -> list[str]:
    """Convert the tags of a sentence to a scheme, with the same entities."""
    return tags_of(entities_of(tags), len(tags), scheme)


def entity_scores(truth: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
    """`precision`, `recall` and `f1` of whole entities in seqeval's default mode, micro-averaged; 0 where undefined."""
    precision, recall, f1, _ = precision_recall_fscore_support(
        [scorable(tags) for tags in truth],
        [scorable(tags) for tags in predictions],
        average="micro",
        zero_division=0,
    )
    return {"precision": float(precision), "recall": float(recall), "f1": float(f1)}


def class_scores(truth: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
    """`accuracy` of words, and `f1_macro` over their classes."""
    expected, found = ([tag for tags in rows for tag in tags] for rows in (truth, predictions))
    macro = f1_score(expected, found, average="macro", zero_division=0)
    return {"accuracy": float(accuracy_score(expected, found)), "f1_macro": float(macro)}


def sentence_macro_f1(truth: Sequence[Sequence[int]], predictions: Sequence[Sequence[int | None]]) -> float:
    """The paper's score: F1 of each tag that occurs in a sentence or its prediction, O included, averaged twice.

    First over the tags of a sentence, then over the sentences. It is much higher than the F1 of entities. Words without
    an answer (None) are left out, as are sentences with only such words.
    """
    scores = []
    for gold, predicted in zip(truth, predictions, strict=True):
        answered = [(right, answer) for right, answer in zip(gold, predicted, strict=True) if answer is not None]
        if answered:
            scores.append(f1_score(*zip(*answered, strict=True), average="macro", zero_division=0))
    return float(np.mean(scores)) if scores else 0.0
