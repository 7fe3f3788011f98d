"""Files of named retrieval sets: BEIR folders of rows of the hub."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from toolkit.core.errors import UserError
from toolkit.core.text import first_few
from toolkit.finetuning.ir.beir import SPLITS
from toolkit.finetuning.named.hub_rows import Hub
from toolkit.finetuning.named.published_forms import PublishedForm
from toolkit.finetuning.settings import Split

_HALVING_SEED = 42
_QRELS = {split: f"qrels/{name}.tsv" for split, name in SPLITS.items()}

JudgedRows = list[tuple[str, str, int]]
"""Query id, document id and grade."""
Documents = Iterable[tuple[str, str, str]]
"""Id, title and text."""


class BeirFolder(PublishedForm):
    """`corpus.jsonl`, `queries.jsonl` with the judged queries alone, and judgements of each split in `qrels/`."""

    @property
    def files(self) -> Mapping[Split, str]:
        """The judgements of each split."""
        return {split: _QRELS[split] for split in Split if split in self.rows}

    def _write_folder(
        self,
        folder: Path,
        judged: Mapping[Split, JudgedRows],
        queries: Mapping[str, str],
        documents: Documents,
        *,
        corpus: Literal["whole", "judged"],
    ) -> None:
        """Write a BEIR folder; all queries and documents that are judged must be there."""
        asked = dict.fromkeys(query for rows in judged.values() for query, _, _ in rows)
        missing = {document for rows in judged.values() for _, document, _ in rows}
        wanted = frozenset(missing)
        self._check_found("queries", [query for query in asked if query not in queries])
        with (folder / "corpus.jsonl").open("wb") as file:
            for document, title, text in documents:
                missing.discard(document)
                if corpus == "whole" or document in wanted:
                    file.write(orjson.dumps({"_id": document, "title": title, "text": text}) + b"\n")
        self._check_found("documents", sorted(missing))
        with (folder / "queries.jsonl").open("wb") as file:
            file.writelines(orjson.dumps({"_id": query, "text": queries[query]}) + b"\n" for query in asked)
        (folder / "qrels").mkdir()
        for split, rows in judged.items():
            with (folder / _QRELS[split]).open("w", encoding="utf-8") as file:
                file.write("query-id\tcorpus-id\tscore\n")
                file.writelines(f"{query}\t{document}\t{grade}\n" for query, document, grade in rows)

    def _check_found(self, what: str, missing: Sequence[str]) -> None:
        if missing:
            raise UserError(
                f"the data set {self.name}: {len(missing):,} judged {what} are not on the hub ({first_few(missing)}). "
                "The repository has changed; give a BEIR folder of your own (--train and --test)."
            )


@dataclass(frozen=True)
class BeirRepositories(BeirFolder):
    """Rows of the two repositories that the hub has of a BEIR set: documents and queries, and judgements."""

    corpus: Literal["whole", "judged"] = "whole"
    """Documents that are searched."""

    def write(self, hub: Hub, folder: Path) -> None:
        """Write a BEIR folder."""
        judged = self._judgements(hub)
        texts = {str(row["_id"]): row["text"] for row in hub.open(self.rows["queries"]).read("_id", "text")}
        rows = hub.open(self.rows["corpus"]).read("_id", "title", "text")
        documents = ((str(row["_id"]), row["title"] or "", row["text"]) for row in rows)
        self._write_folder(folder, judged, texts, documents, corpus=self.corpus)

    def _judgements(self, hub: Hub) -> Mapping[Split, JudgedRows]:
        return {
            split: [
                (str(row["query-id"]), str(row["corpus-id"]), int(row["score"]))
                for row in hub.open(self.rows[split]).read("query-id", "corpus-id", "score")
            ]
            for split in Split
            if split in self.rows
        }


class HalvedBeirRepositories(BeirRepositories):
    """Judgements of a test split alone; half of its queries, drawn with seed 42, are the validation split."""

    @property
    def files(self) -> Mapping[Split, str]:
        """The judgements of the two halves."""
        return {split: _QRELS[split] for split in (Split.VALIDATION, Split.TEST)}

    def _judgements(self, hub: Hub) -> Mapping[Split, JudgedRows]:
        judged = super()._judgements(hub)[Split.TEST]
        queries = sorted({query for query, _, _ in judged})
        drawn = set(random.Random(_HALVING_SEED).sample(queries, round(len(queries) / 2)))
        return {
            Split.VALIDATION: [row for row in judged if row[0] in drawn],
            Split.TEST: [row for row in judged if row[0] not in drawn],
        }


class PassagesInRows(BeirFolder):
    """Rows that hold a query and its relevant documents, as MLDR; without a corpus these are all documents."""

    def write(self, hub: Hub, folder: Path) -> None:
        """Write a BEIR folder."""
        corpus = self.rows.get("corpus")
        texts: dict[str, str] = {}
        relevant: dict[str, str] = {}
        judged: dict[Split, JudgedRows] = {split: [] for split in self.files}
        for split in judged:
            for row in hub.open(self.rows[split]).read("query_id", "query", "positive_passages"):
                query = str(row["query_id"])
                passages = {str(passage["docid"]): passage["text"] for passage in row["positive_passages"]}
                texts[query] = row["query"]
                judged[split] += [(query, document, 1) for document in passages]
                relevant |= passages if corpus is None else {}
        if corpus is None:
            documents: Documents = ((document, "", text) for document, text in relevant.items())
        else:
            documents = ((str(row["docid"]), "", row["text"]) for row in hub.open(corpus).read("docid", "text"))
        self._write_folder(folder, judged, texts, documents, corpus="whole")
