"""Answers of a fine-tuned folder as its users get them, from transformers and sentence-transformers alone.

Of any version: `python -m tests.support.stock_readers` reads a list of (task, folder, inputs) from standard input.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoModelForTokenClassification, AutoTokenizer
from transformers import pipeline as stock_pipeline


def classified(folder: str, rows: list[dict[str, str]]) -> list[str]:
    """Labels of texts, or of pairs of texts."""
    classify: Any = stock_pipeline("text-classification", model=folder, device="cpu")
    return [classify(row)["label"] for row in rows]


def tagged(folder: str, texts: list[str]) -> list[list[str]]:
    """A tag for each word; a word is a token."""
    tagger: Any = stock_pipeline("token-classification", model=folder, device="cpu", ignore_labels=[])
    return [[answer["entity"] for answer in tagger(text) if answer["word"] in text.split()] for text in texts]


def answered(folder: str, rows: list[tuple[str, str]]) -> list[str]:
    """Answers to questions in contexts that fit into an input, where all have one."""
    has_own = AutoConfig.from_pretrained(folder).architectures[0].endswith("QuestionAnswering")
    kind = AutoModelForQuestionAnswering if has_own else AutoModelForTokenClassification
    tokenizer, network = AutoTokenizer.from_pretrained(folder), kind.from_pretrained(folder).eval()
    answers = []
    for question, context in rows:
        inputs = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets, owners = inputs.pop("offset_mapping")[0].tolist(), inputs.sequence_ids(0)
        with torch.no_grad():
            found = network(**inputs)
        start, end = (found.start_logits[0], found.end_logits[0]) if has_own else found.logits[0].T
        places = [place for place, owner in enumerate(owners) if owner == 1]
        spans = [(first, last) for first in places for last in places if first <= last]
        first, last = max(spans, key=lambda span: float(start[span[0]] + end[span[1]]))
        answers.append(context[offsets[first][0] : offsets[last][1]])
    return answers


def ranked(folder: str, texts: tuple[list[str], list[str]]) -> list[list[int]]:
    """The ten best of some documents for each query, by number."""
    from sentence_transformers import SentenceTransformer

    embedder = SentenceTransformer(folder, device="cpu")
    assert len(embedder.encode([""])) == 1
    queries, documents = (
        encode(list(some), normalize_embeddings=True, show_progress_bar=False)
        for encode, some in zip((embedder.encode_query, embedder.encode_document), texts, strict=True)
    )
    best: list[list[int]] = np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :10].tolist()
    return best


READERS: dict[str, Any] = {"sc": classified, "tc": tagged, "qa": answered, "ir": ranked}

if __name__ == "__main__":
    jobs = json.loads(sys.stdin.read())
    Path(sys.argv[1]).write_text(json.dumps([READERS[task](folder, inputs) for task, folder, inputs in jobs]))
