"""Forms of named retrieval sets: documents, queries and judgements from rows of the hub."""

import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from toolkit.finetuning.bad_rows import BadRows
from toolkit.finetuning.ir.beir import Collection, Document, Judgement, Judgements, to_judgements
from toolkit.finetuning.named.published_forms import LocalFiles, PublishedForm
from toolkit.finetuning.settings import Split

_HALVING_SEED = 42

Judged = dict[Split, list[Judgement]]


class RetrievalForm(PublishedForm):
    """A collection with only the judged queries, and judgements of each split."""

    collection: ClassVar[type[Collection]] = Collection

    def judgements(self, files: LocalFiles, bad: BadRows) -> dict[Split, Judgements]:
        """The judgements of all splits, on one collection."""
        judged, queries, documents = self._read(files)
        asked = {one.query for rows in judged.values() for one in rows}
        place = Path(self.name)
        collection = self.collection(
            place, place, dict(documents), {query: text for query, text in queries.items() if query in asked}
        )
        return {
            split: to_judgements(Path(f"{self.name} {split}"), rows, collection, bad) for split, rows in judged.items()
        }

    @abstractmethod
    def _read(self, files: LocalFiles) -> tuple[Judged, Mapping[str, str], Iterable[tuple[str, Document]]]:
        """Judgements by split, texts of queries, and documents."""


@dataclass(frozen=True)
class BeirRepositories(RetrievalForm):
    """Rows of the hub's two repositories of a BEIR set: documents and queries in one, judgements in the other."""

    corpus: Literal["whole", "judged"] = "whole"
    """Documents to search."""

    def _read(self, files: LocalFiles) -> tuple[Judged, Mapping[str, str], Iterable[tuple[str, Document]]]:
        judged = self._rows_by_split(files)
        wanted = {one.document for rows in judged.values() for one in rows}
        queries = self.rows["queries"].read(files["queries"], "_id", "text")
        rows = self.rows["corpus"].read(files["corpus"], "_id", "title", "text")
        documents = (
            (str(row["_id"]), Document((row["title"] or "").strip(), row["text"].strip()))
            for row in rows
            if self.corpus == "whole" or str(row["_id"]) in wanted
        )
        return judged, {str(row["_id"]): row["text"].strip() for row in queries}, documents

    def _rows_by_split(self, files: LocalFiles) -> Judged:
        return {
            split: [
                Judgement(str(row["query-id"]), str(row["corpus-id"]), int(row["score"]), f"{self.name}, row {number}")
                for number, row in enumerate(
                    self.rows[split].read(files[split], "query-id", "corpus-id", "score"), start=1
                )
            ]
            for split in Split
            if split in self.rows
        }


class HalvedBeirRepositories(BeirRepositories):
    """Judgements of a test split only; half of its queries, drawn with seed 42, are the validation split."""

    @property
    def splits(self) -> Sequence[Split]:
        """The two halves."""
        return (Split.VALIDATION, Split.TEST)

    def _rows_by_split(self, files: LocalFiles) -> Judged:
        judged = super()._rows_by_split(files)[Split.TEST]
        queries = sorted({one.query for one in judged})
        drawn = set(random.Random(_HALVING_SEED).sample(queries, round(len(queries) / 2)))
        return {
            Split.VALIDATION: [one for one in judged if one.query in drawn],
            Split.TEST: [one for one in judged if one.query not in drawn],
        }


class PassagesInRows(RetrievalForm):
    """Rows of a query and its relevant documents, as in MLDR; without a corpus, those are the only documents."""

    def _read(self, files: LocalFiles) -> tuple[Judged, Mapping[str, str], Iterable[tuple[str, Document]]]:
        texts: dict[str, str] = {}
        relevant: dict[str, Document] = {}
        judged: Judged = {split: [] for split in self.splits}
        for split, judgements in judged.items():
            rows = self.rows[split].read(files[split], "query_id", "query", "positive_passages")
            for number, row in enumerate(rows, start=1):
                query = str(row["query_id"])
                passages = {str(one["docid"]): Document("", one["text"].strip()) for one in row["positive_passages"]}
                texts[query] = row["query"].strip()
                place = f"{self.rows[split]}, row {number}"
                judgements += [Judgement(query, document, 1, place) for document in passages]
                relevant |= {} if "corpus" in self.rows else passages
        return judged, texts, self._documents(files) if "corpus" in self.rows else relevant.items()

    def _documents(self, files: LocalFiles) -> Iterator[tuple[str, Document]]:
        for row in self.rows["corpus"].read(files["corpus"], "docid", "text"):
            yield str(row["docid"]), Document("", row["text"].strip())


class SetsOfNanoBeir(Collection):
    """Sets that are searched separately, and scored as sentence-transformers' `NanoBEIREvaluator` does."""

    def by_set(self, ids: Iterable[str]) -> dict[str, list[str]]:
        """Ids by the data set name that prefixes each."""
        found: dict[str, list[str]] = {}
        for identity in ids:
            found.setdefault(identity.partition("/")[0], []).append(identity)
        return found

    def is_query_itself(self, query: str, document: str) -> bool:
        """False: a query may retrieve itself, as in `NanoBEIREvaluator`."""
        return False


class NanoBeir(RetrievalForm):
    """Sets of NanoBEIR; `rows` are `SET/corpus`, `SET/queries` and `SET/qrels` of each. Documents have no titles."""

    collection: ClassVar[type[Collection]] = SetsOfNanoBeir

    @property
    def splits(self) -> Sequence[Split]:
        """Only the test split."""
        return (Split.TEST,)

    def _read(self, files: LocalFiles) -> tuple[Judged, Mapping[str, str], Iterable[tuple[str, Document]]]:
        judged: list[Judgement] = []
        texts: dict[str, dict[str, str]] = {"queries": {}, "corpus": {}}
        for use, rows in self.rows.items():
            name, _, part = use.partition("/")
            if part == "qrels":
                for number, row in enumerate(rows.read(files[use], "query-id", "corpus-id"), start=1):
                    query, document = (f"{name}/{row[column]}" for column in ("query-id", "corpus-id"))
                    judged.append(Judgement(query, document, 1, f"{rows}, row {number}"))
            else:
                texts[part] |= {f"{name}/{row['_id']}": row["text"] for row in rows.read(files[use], "_id", "text")}
        documents = ((identity, Document("", text)) for identity, text in texts["corpus"].items())
        return {Split.TEST: judged}, texts["queries"], documents
