"""Files of named retrieval sets: BEIR folders of rows of the hub.

A folder holds `corpus.jsonl`, `queries.jsonl` and `qrels/{train,dev,test}.tsv`, with the judged queries alone.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from toolkit.core.errors import UserError
from toolkit.core.text import first_few
from toolkit.finetuning.named.hub_rows import Hub, HubRows
from toolkit.finetuning.named.published_forms import PublishedForm
from toolkit.finetuning.settings import Split

_QRELS = {Split.TRAIN: "qrels/train.tsv", Split.VALIDATION: "qrels/dev.tsv", Split.TEST: "qrels/test.tsv"}
_HALVING_SEED = 42

Judgements = list[tuple[str, str, int]]
"""Query id, document id and grade."""
Documents = Iterable[tuple[str, str, str]]
"""Id, title and text."""


class Corpus(StrEnum):
    """Which documents are searched."""

    WHOLE = "whole"
    JUDGED = "judged"


@dataclass(frozen=True)
class BeirRepositories(PublishedForm):
    """A data set that the hub has as BEIR's two repositories: documents and queries, and judgements.

    Attributes:
        repository: documents and queries.
        judgements: rows of the judgements of each split.
        corpus: which documents are kept.
    """

    name: str
    repository: str
    judgements: Mapping[Split, HubRows]
    corpus: Corpus

    @property
    def files(self) -> Mapping[Split, str]:
        """The judgements of each split."""
        return {split: _QRELS[split] for split in self.judgements}

    @property
    def sources(self) -> Sequence[HubRows]:
        """Documents, queries and judgements."""
        texts = (HubRows(self.repository, part, configuration=part) for part in ("corpus", "queries"))
        return *texts, *self.judgements.values()

    def write(self, hub: Hub, folder: Path) -> None:
        """Write a BEIR folder."""
        corpus, queries, *_ = self.sources
        judged = self._judgements(hub)
        rows = hub.open(queries).read("_id", "text")
        texts = {str(row["_id"]): row["text"] for row in rows}
        documents = (
            (str(row["_id"]), row["title"] or "", row["text"]) for row in hub.open(corpus).read("_id", "title", "text")
        )
        _write_folder(folder, self.name, judged, texts, documents, self.corpus)

    def _judgements(self, hub: Hub) -> Mapping[Split, Judgements]:
        return {
            split: [
                (str(row["query-id"]), str(row["corpus-id"]), int(row["score"]))
                for row in hub.open(source).read("query-id", "corpus-id", "score")
            ]
            for split, source in self.judgements.items()
        }


class HalvedBeirRepositories(BeirRepositories):
    """Judgements of a test split alone; half of its queries, drawn with seed 42, are the validation split."""

    @property
    def files(self) -> Mapping[Split, str]:
        """The judgements of the two halves."""
        return {split: _QRELS[split] for split in (Split.VALIDATION, Split.TEST)}

    def _judgements(self, hub: Hub) -> Mapping[Split, Judgements]:
        judged = super()._judgements(hub)[Split.TEST]
        queries = sorted({query for query, _, _ in judged})
        drawn = set(random.Random(_HALVING_SEED).sample(queries, round(len(queries) / 2)))
        return {
            Split.VALIDATION: [row for row in judged if row[0] in drawn],
            Split.TEST: [row for row in judged if row[0] not in drawn],
        }


@dataclass(frozen=True)
class PassagesInRows(PublishedForm):
    """A data set whose rows hold a query and its relevant documents, as MLDR.

    Attributes:
        splits: rows of each split.
        documents: rows of the whole corpus; None for the relevant documents of the splits alone.
    """

    name: str
    splits: Mapping[Split, HubRows]
    documents: HubRows | None

    @property
    def files(self) -> Mapping[Split, str]:
        """The judgements of each split."""
        return {split: _QRELS[split] for split in self.splits}

    @property
    def sources(self) -> Sequence[HubRows]:
        """The splits, and the corpus."""
        return (*self.splits.values(), *(() if self.documents is None else (self.documents,)))

    def write(self, hub: Hub, folder: Path) -> None:
        """Write a BEIR folder."""
        texts: dict[str, str] = {}
        relevant: dict[str, str] = {}
        judged: dict[Split, Judgements] = {split: [] for split in self.splits}
        for split, source in self.splits.items():
            for row in hub.open(source).read("query_id", "query", "positive_passages"):
                query = str(row["query_id"])
                passages = {str(passage["docid"]): passage["text"] for passage in row["positive_passages"]}
                texts[query] = row["query"]
                judged[split] += [(query, document, 1) for document in passages]
                relevant |= passages if self.documents is None else {}
        if self.documents is None:
            documents: Documents = ((document, "", text) for document, text in relevant.items())
        else:
            documents = ((str(row["docid"]), "", row["text"]) for row in hub.open(self.documents).read("docid", "text"))
        _write_folder(folder, self.name, judged, texts, documents, Corpus.WHOLE)


def _write_folder(
    folder: Path,
    name: str,
    judged: Mapping[Split, Judgements],
    queries: Mapping[str, str],
    documents: Documents,
    corpus: Corpus,
) -> None:
    """Write a BEIR folder with the queries that have judgements, which must all be there, as must their documents."""
    asked = dict.fromkeys(query for rows in judged.values() for query, _, _ in rows)
    missing = {document for rows in judged.values() for _, document, _ in rows}
    wanted = frozenset(missing)
    _check_found(name, "queries", [query for query in asked if query not in queries])
    with (folder / "corpus.jsonl").open("wb") as file:
        for document, title, text in documents:
            missing.discard(document)
            if corpus is Corpus.WHOLE or document in wanted:
                file.write(orjson.dumps({"_id": document, "title": title, "text": text}) + b"\n")
    _check_found(name, "documents", sorted(missing))
    with (folder / "queries.jsonl").open("wb") as file:
        file.writelines(orjson.dumps({"_id": query, "text": queries[query]}) + b"\n" for query in asked)
    (folder / "qrels").mkdir()
    for split, rows in judged.items():
        with (folder / _QRELS[split]).open("w", encoding="utf-8") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            file.writelines(f"{query}\t{document}\t{grade}\n" for query, document, grade in rows)


def _check_found(name: str, what: str, missing: Sequence[str]) -> None:
    if missing:
        raise UserError(
            f"the data set {name}: {len(missing):,} judged {what} are not on the hub ({first_few(missing)}). The "
            "repository has changed; give a BEIR folder of your own (--train and --test)."
        )
