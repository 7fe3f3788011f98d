"""Contrastive training: batches without false negatives, and sentence-transformers' trainer."""

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.finetuning.ir.beir import Judgements
from toolkit.finetuning.settings import FinetuningSettings
from toolkit.finetuning.trainer import run_trainer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

_QUEUED_BATCHES = 4
"""Batches' worth of pairs to choose a batch from, so that it is full even if some pairs have to wait."""


class TrainingPair(NamedTuple):
    """Texts of a query, a relevant document, everything that must not be a negative, and documents judged not relevant.

    The relevant documents must not be negatives, nor the query's own text, which may be a document relevant to another
    query: telling a query from itself teaches nothing.
    """

    query: str
    positive: str
    relevant: frozenset[str]
    negatives: tuple[str, ...]


def training_pairs(judged: Judgements, texts: Mapping[str, str]) -> list[TrainingPair]:
    """A pair for each query and relevant document, with `texts` of documents by id; empty documents are left out.

    Raises:
        UserError: fewer than two queries have a pair.
    """
    pairs: list[TrainingPair] = []
    num_empty = 0
    for query, grades in judged.grades.items():
        known = [(texts[document], grade) for document, grade in grades.items() if document in texts]
        relevant = [text for text, grade in known if grade > 0]
        question = judged.collection.queries[query]
        wanted = frozenset([question, *relevant])
        told_apart = tuple(text for text, grade in known if grade <= 0 and text and text not in wanted)
        num_empty += relevant.count("")
        pairs.extend(TrainingPair(question, text, wanted, told_apart) for text in relevant if text)
    if num_empty:
        console().print(f"{judged.path}: {counted(num_empty, 'relevant document')} without text left out.")
    if len({pair.query for pair in pairs}) < 2:
        raise UserError(
            f"{judged.path}: training needs at least two queries with a relevant document, since the documents of one "
            "are the negatives of another. Add queries."
        )
    return pairs


class TrainingRow(NamedTuple):
    """A row of a batch; `negative` is None if no pair of the training data has one."""

    query: str
    positive: str
    negative: str | None


class _Batch:
    """Examples whose documents are not relevant to each other's queries."""

    def __init__(self) -> None:
        self.examples: list[TrainingRow] = []
        self._queries: set[str] = set()
        self._documents: set[str] = set()
        self._relevant: set[str] = set()

    def add(self, pair: TrainingPair, negative: str | None) -> bool:
        documents = {pair.positive} if negative is None else {pair.positive, negative}
        if pair.query in self._queries or documents & self._relevant or not pair.relevant.isdisjoint(self._documents):
            return False
        self.examples.append(TrainingRow(pair.query, pair.positive, negative))
        self._queries.add(pair.query)
        self._documents |= documents
        self._relevant |= pair.relevant
        return True


def plan_batches(pairs: Sequence[TrainingPair], *, rows: int, steps: int, seed: int) -> list[list[TrainingRow]]:
    """Plan the batches of a whole run, in order.

    Every document of a batch is a negative for all queries but its own, so a pair waits for a later batch if it would
    add a document relevant to another query, or repeat a query. A batch is smaller than `rows` only if no more pairs
    fit. Each pass over the pairs has a new order, and draws one of each pair's negatives; a pair without negatives gets
    a document of another pair.
    """
    draw = np.random.default_rng(seed)
    pool = [text for pair in pairs for text in (pair.positive, *pair.negatives)]
    has_negatives = any(pair.negatives for pair in pairs)
    waiting: deque[TrainingPair] = deque()
    batches: list[list[TrainingRow]] = []
    while len(batches) < steps:
        while len(waiting) < _QUEUED_BATCHES * rows:
            waiting.extend(pairs[number] for number in draw.permutation(len(pairs)))
        batch, later = _Batch(), []
        while waiting and len(batch.examples) < rows:
            pair = waiting.popleft()
            if not batch.add(pair, _negative(pair, pool, draw) if has_negatives else None):
                later.append(pair)
        waiting.extendleft(reversed(later))
        batches.append(batch.examples)
    return batches


def _negative(pair: TrainingPair, pool: Sequence[str], draw: np.random.Generator) -> str:
    if pair.negatives:
        return pair.negatives[int(draw.integers(len(pair.negatives)))]
    # If nearly everything is relevant, the last draw is used; `_Batch` still keeps it away from other queries.
    for _ in range(100):
        chosen = pool[int(draw.integers(len(pool)))]
        if chosen not in pair.relevant:
            break
    return chosen


def train_contrastively(
    network: "SentenceTransformer",
    batches: Sequence[Sequence[TrainingRow]],
    loss: "nn.Module",
    *,
    settings: FinetuningSettings,
    folder: Path,
) -> None:
    """Train in place with sentence-transformers' trainer."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    class _TrainerWithoutCard(SentenceTransformerTrainer):
        def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
            """Do nothing: the callback would count the tokens of all texts for a model card."""

    prompts = {"anchor": "query", "positive": "document", "negative": "document"}
    examples = [example for batch in batches for example in batch]
    columns = dict(zip(prompts, zip(*examples, strict=True), strict=True))
    if columns["negative"][0] is None:
        del columns["negative"]
    numbers = iter(range(len(examples)))
    rows_of_batches = [list(islice(numbers, len(batch))) for batch in batches]
    run_trainer(
        functools.partial(
            _TrainerWithoutCard,
            train_dataset=Dataset.from_dict({name: list(texts) for name, texts in columns.items()}),
            loss=loss,
        ),
        network,
        settings,
        folder,
        steps=len(batches),
        kind=SentenceTransformerTrainingArguments,
        prompts={column: network.prompts[prompts[column]] for column in columns},
        batch_sampler=lambda dataset, **of_the_trainer: rows_of_batches,
    )
