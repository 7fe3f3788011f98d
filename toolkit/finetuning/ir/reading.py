"""Retrieval data: judgements of each split, and text pairs as training judgements."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.core.errors import UserError
from toolkit.core.text import json_kind
from toolkit.finetuning.bad_rows import BadRowError, BadRows
from toolkit.finetuning.ir import beir
from toolkit.finetuning.ir.beir import Collection, Document, Judgements
from toolkit.finetuning.named.published_forms import DataFile, PublishedSplit
from toolkit.finetuning.named.published_retrieval import RetrievalForm
from toolkit.finetuning.settings import Split
from toolkit.tables import TableRow, read_table

_QUERY, _OTHER_QUERY, _POSITIVE = "query", "anchor", "positive"
# Not columns of ids or scores, such as `negative_score`, which are text in CSV too.
_NEGATIVES = re.compile(r"negatives?[-_ ]?\d*")
_WHAT_TO_GIVE = "Give a BEIR folder (corpus.jsonl, queries.jsonl, qrels/), or a file of judgements in one."


def read_splits(
    files: Mapping[Split, DataFile], bad: BadRows, *, columns: Sequence[str] | None = None
) -> dict[Split, Judgements]:
    """Read the judgements of each split; a collection that splits share is read once. A training file may have pairs.

    Args:
        columns: names of the columns of query and relevant document in a file of pairs, if not the default ones.
    """
    collections: dict[Path, Collection] = {}
    published: dict[str, Mapping[Split, Judgements]] = {}
    judgements: dict[Split, Judgements] = {}
    for split, path in files.items():
        if isinstance(path, PublishedSplit):
            assert isinstance(path.form, RetrievalForm)
            if path.form.name not in published:
                published[path.form.name] = path.form.judgements(path.files, bad)
            judgements[split] = published[path.form.name][split]
            continue
        if not path.exists():
            raise UserError(f"{path}: no such file or directory. {_WHAT_TO_GIVE}")
        if not beir.is_beir(path):
            if split is Split.TRAIN and path.is_file():
                judgements[split] = read_pairs(path, bad, columns=columns)
                continue
            alone = " Tables of pairs are for training only." if path.is_file() else ""
            raise UserError(f"{path}: not a collection of documents and queries. {_WHAT_TO_GIVE}{alone}")
        file = beir.judgements_file(path, split=beir.SPLITS[split])
        root = beir.collection_folder(file).resolve()
        if root not in collections:
            collections[root] = beir.read_collection(file, bad)
        judgements[split] = beir.read_judgements(file, collections[root], bad)
    return judgements


def read_pairs(path: Path, bad: BadRows, *, columns: Sequence[str] | None = None) -> Judgements:
    """Read rows of a query, a relevant document and irrelevant ones (`negative`, `negative_1`), as judgements.

    A text is its own id, so rows with the same query are merged. A document is relevant if any of them says so.
    """
    table = read_table(path)
    query = _OTHER_QUERY if _QUERY not in table.columns and _OTHER_QUERY in table.columns else _QUERY
    query, positive = columns or (query, _POSITIVE)
    if missing := [name for name in (query, positive) if name not in table.columns]:
        raise UserError(
            f"{path}: no column {' or '.join(map(repr, missing))}; found: {', '.join(map(repr, table.columns))}. "
            "Choose the columns of query and relevant document with --text-columns, or give a BEIR folder."
        )
    negatives = [name for name in table.columns if _NEGATIVES.fullmatch(name)]
    grades: dict[str, dict[str, int]] = {}

    def add(numbered: tuple[int, TableRow]) -> None:
        place, row = f"{path}, row {numbered[0]}", numbered[1]
        asked, relevant = (_text(place, row, name) for name in (query, positive))
        if not asked or not relevant:
            raise BadRowError(place, f"{positive if asked else query!r} has no text")
        others = [text for name in negatives if (text := _text(place, row, name))]
        of_query = grades.setdefault(asked, {})
        for text in others:
            of_query.setdefault(text, 0)
        of_query[relevant] = 1

    bad.each(path, enumerate(table.rows, start=1), add)
    documents = {text: Document("", text) for of_query in grades.values() for text in of_query}
    return Judgements(path, Collection(path, path, documents, {text: text for text in grades}), grades)


def _text(place: str, row: TableRow, column: str) -> str:
    """A cell without surrounding blanks; an empty string if absent."""
    value = row.get(column)
    if value is not None and not isinstance(value, str):
        raise BadRowError(place, f"{column!r} must be a string, found {json_kind(value)}")
    return (value or "").strip()
