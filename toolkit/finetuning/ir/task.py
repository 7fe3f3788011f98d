"""Retrieval (`ir`): a SentenceTransformer that finds the documents that answer a query."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import torch
from pydantic import Field, model_validator
from torch import nn

from toolkit.finetuning.bad_rows import BadRows, CheckedData
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.ir import beir
from toolkit.finetuning.ir.beir import Judgements
from toolkit.finetuning.ir.contrastive import plan_batches, train_contrastively, training_pairs
from toolkit.finetuning.ir.embedding import modules_of, new_embedder, save_encoder, search, with_modules
from toolkit.finetuning.ir.ranking_metrics import Rankings, paper_ndcg, ranking_scores
from toolkit.finetuning.ir.reading import read_splits
from toolkit.finetuning.named.published_forms import DataFile
from toolkit.finetuning.settings import SPLIT_AT_COMMAS, FinetuningSettings, Name, Split
from toolkit.finetuning.task import Outputs, Prediction, Task
from toolkit.finetuning.trainer import Features, settle_accelerator

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_DEPTH = 100

_NAMES_OF_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Names under which sentence-transformers looks for a prompt, in order of preference."""
_FIXED: Mapping[str, Mapping[str, Any]] = {
    "standard": {},
    "paper": {"query_prompt": "Query: ", "document_prompt": "Document: ", "similarity_scale": 20.0, "chunk_rows": 4},
}
"""Settings that a protocol fixes."""


class RetrievalSettings(FinetuningSettings):
    """Fine-tuning for retrieval."""

    text_columns: (
        Annotated[tuple[Name, ...], Field(min_length=2, max_length=2, strict=False), SPLIT_AT_COMMAS] | None
    ) = None
    """Columns of query and relevant document in a training file of pairs. Unset: `query`, or else `anchor`, and
    `positive`."""
    query_prompt: str = ""
    """Precedes every query; stored in `model/`. `paper`: `Query: `."""
    document_prompt: str = ""
    """Precedes every document; stored in `model/`. `paper`: `Document: `."""
    steps: int = Field(default=1000, ge=0)
    """Optimizer updates; the training file is read again as often as needed. 0: the model is scored as it is."""
    similarity_scale: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    """Factor of the cosine in the loss: 1 / temperature."""
    chunk_rows: int | None = Field(default=None, ge=1)
    """Examples per forward pass, to save memory; the result is the same, at the price of a second forward pass.
    Unset: the whole batch. `paper`: 4."""

    @model_validator(mode="after")
    def _check_options(self) -> "RetrievalSettings":
        if self.micro_rows is not None:
            raise ValueError(
                "micro_rows does not split the batches of retrieval, whose documents are the negatives of one another. "
                "Use chunk_rows."
            )
        for name, value in _FIXED[self.protocol].items():
            if name in self.model_fields_set and getattr(self, name) != value:
                raise ValueError(
                    f"protocol = {self.protocol!r} fixes {name} = {value!r}. Leave it out, or use 'standard'."
                )
        return self

    @property
    def in_force(self) -> "RetrievalSettings":
        """The settings, with those that the protocol fixes."""
        return self.model_copy(update=_FIXED[self.protocol])


@dataclass(frozen=True)
class JudgedSplits(CheckedData):
    """Judgements of each split, and the documents to search for each split but training."""

    judgements: Mapping[Split, Judgements]
    searched: Mapping[Split, list[str]]


class Retrieval(Task[JudgedSplits]):
    """Mean pooling, trained with in-batch negatives; exact search of the whole collection."""

    name: ClassVar[str] = "ir"
    pipeline: ClassVar[str] = "sentence-similarity"
    metrics: ClassVar[Mapping[str, str]] = {"standard": "ndcg@10", "paper": "paper_ndcg@10"}
    other_metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {"standard": ("mrr@10", "recall@100")}
    Settings: ClassVar[type[FinetuningSettings]] = RetrievalSettings
    settings: RetrievalSettings

    def read(self, files: Mapping[Split, DataFile]) -> JudgedSplits:
        """Read BEIR folders or judgement files in them; for training also files of pairs."""
        bad = BadRows(self.settings.bad_rows)
        read = read_splits(files, bad, columns=self.settings.text_columns)
        queries = self.with_validation({split: list(judged.grades) for split, judged in read.items()})
        judgements = {
            split: read[split if split in read else Split.TRAIN].only(asked) for split, asked in queries.items()
        }
        answered = {split: judged for split, judged in judgements.items() if split is not Split.TRAIN}
        searched: dict[Split, list[str]] = {}
        for split, judged in answered.items():
            documents, chosen = judged.collection.documents, {*judged.collection.documents}
            if self.is_paper:
                # Only documents judged in validation or test.
                given = [answered[other] for other in answered if other in files and split in files] or [judged]
                chosen = {one for other in given if other.collection is judged.collection for one in other.documents}
            searched[split] = [one for one in documents if one in chosen and documents[one].joined(" ")]
        return JudgedSplits(judgements, searched, bad=bad)

    def read_open(self, file: Path, folder: Path, notes: Mapping[str, Any]) -> JudgedSplits:
        """A BEIR folder or a file of judgements, as in `read`; without judgements, all queries are used."""
        bad = BadRows(self.settings.bad_rows)
        qrels = file / "qrels"
        if not file.is_dir() or not beir.is_beir(file) or (qrels / "test.tsv").is_file():
            judged = read_splits({Split.TEST: file}, bad)[Split.TEST]
        else:
            collection = beir.read_collection(qrels / "none", bad)
            judged = Judgements(file, collection, {query: {} for query in collection.queries})
        documents, chosen = judged.collection.documents, {*((self.is_paper and judged.documents) or ())}
        searched = [one for one in documents if (one in chosen or not chosen) and documents[one].joined(" ")]
        return JudgedSplits({Split.TEST: judged}, {Split.TEST: searched}, bad=bad)

    def load(self, source: EncoderSource, data: JudgedSplits) -> nn.Module:
        """The SentenceTransformer."""
        settle_accelerator()
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(source.model, device="cpu")

    def encode(self, data: JudgedSplits, source: EncoderSource) -> Mapping[Split, Features]:
        """Texts, since a SentenceTransformer tokenizes them itself: training pairs, and a search for each set."""
        features: dict[Split, Features] = {}
        separator = ". " if self.is_paper else " "
        for split, judged in data.judgements.items():
            texts = {one: document.joined(separator) for one, document in judged.collection.documents.items()}
            if split is Split.TRAIN:
                pairs = training_pairs(judged, texts)
                if self.is_paper:
                    # Its negatives are the other documents of a batch.
                    pairs = [pair._replace(negatives=()) for pair in pairs]
                features[split] = [{"pair": pair} for pair in pairs]
            else:
                collection, searched = judged.collection, judged.collection.by_set(data.searched[split])
                features[split] = [
                    {
                        "queries": [collection.queries[query] for query in asked],
                        "documents": [texts[document] for document in searched.get(name, ())],
                    }
                    for name, asked in collection.by_set(judged.grades).items()
                ]
        return features

    def framed(self, source: EncoderSource) -> EncoderSource:
        """The encoder with the tokenizer that makes the inputs: its own if it is a SentenceTransformer."""
        own = None if self.is_paper else with_modules(source, max_length=self.settings.max_length)
        return super().framed(source) if own is None else own

    def network(self, data: JudgedSplits, source: EncoderSource) -> nn.Module:
        """A SentenceTransformer of the encoder with mean pooling or its own modules; it tokenizes by itself."""
        settings = self.settings.in_force
        stored = {} if source.modules is None else dict(source.modules.prompts)
        usual = "" if source.modules is None else stored.get(source.modules.default_prompt or "") or ""
        for name, others in _NAMES_OF_PROMPTS.items():
            given = settings.model_dump(include={f"{name}_prompt"}, exclude_unset=True)
            known = [*given.values(), *(stored[other] for other in others if other in stored), usual]
            stored[name] = known[0]
        return new_embedder(source, prompts=stored)

    def fit(self, network: nn.Module, features: Features, source: EncoderSource, *, folder: Path) -> None:
        """Train with sentence-transformers' trainer and its loss of in-batch negatives."""
        settings, steps = self.settings, self.settings.num_steps(len(features))
        if not steps:
            return
        pairs = [row["pair"] for row in features]
        batches = plan_batches(pairs, rows=settings.batch_rows, steps=steps, seed=settings.seed)
        embedder = cast("SentenceTransformer", network)
        train_contrastively(embedder, batches, self.ranking_loss(embedder), settings=settings, folder=folder)

    def ranking_loss(self, network: "SentenceTransformer") -> nn.Module:
        """Sentence-transformers' loss of in-batch negatives, for this run's scale and chunks."""
        from sentence_transformers.sentence_transformer import losses

        settings = self.settings.in_force
        scale, rows = settings.similarity_scale, settings.chunk_rows
        if rows is None:
            return losses.MultipleNegativesRankingLoss(network, scale=scale)
        return losses.CachedMultipleNegativesRankingLoss(network, scale=scale, mini_batch_size=rows)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the relevant document among all of a batch; `fit` uses sentence-transformers' own."""
        return nn.functional.cross_entropy(logits, labels)

    def answer_splits(
        self, network: nn.Module, features: Mapping[Split, Features], source: EncoderSource
    ) -> Mapping[Split, Outputs]:
        """Indices of the best documents for each query; searches of the same documents encode them only once."""
        embedder, rows = cast("SentenceTransformer", network), self.settings.batch_rows
        searches = {(split, number): row for split, inputs in features.items() for number, row in enumerate(inputs)}
        found: dict[tuple[Split, int], Outputs] = {}
        for place, one in searches.items():
            alike = [key for key in searches if key not in found and searches[key]["documents"] == one["documents"]]
            if place in alike:
                # One deeper: if a query is itself a document, `decode` leaves that one out.
                queries = [searches[key]["queries"] for key in alike]
                rankings = search(embedder, queries, one["documents"], depth=_DEPTH + 1, rows=rows)
                found |= zip(alike, rankings, strict=True)
        return {split: [row for place in searches if place[0] is split for row in found[place]] for split in features}

    def decode(
        self, data: JudgedSplits, features: Mapping[Split, Features], outputs: Mapping[Split, Outputs]
    ) -> Mapping[Split, list[Prediction]]:
        """Document ids for each query of the judgements, best first, without the query itself."""
        predictions: dict[Split, list[Prediction]] = {}
        for split, rankings in outputs.items():
            collection = data.judgements[split].collection
            asked, searched = collection.by_set(data.judgements[split].grades), collection.by_set(data.searched[split])
            places = [(query, searched.get(name, [])) for name, queries in asked.items() for query in queries]
            predictions[split] = []
            for (query, documents), numbers in zip(places, rankings, strict=True):
                found = (documents[number] for number in numbers)
                others = [document for document in found if not collection.is_query_itself(query, document)]
                predictions[split].append({"id": query, "ranking": others[:_DEPTH]})
        return predictions

    def score(
        self, data: JudgedSplits, predictions: Mapping[Split, list[Prediction]]
    ) -> Mapping[Split, dict[str, float]]:
        """Means over the separately searched sets and, if there are several, the main metric of each."""
        scores: dict[Split, dict[str, float]] = {}
        for split, rows in predictions.items():
            judged, rankings = data.judgements[split], {row["id"]: row["ranking"] for row in rows}
            of_sets = {
                name: self._scores({query: judged.grades[query] for query in asked}, rankings)
                for name, asked in judged.collection.by_set(judged.grades).items()
            }
            scores[split] = {
                metric: statistics.fmean(found[metric] for found in of_sets.values()) for metric in self.metric_names
            }
            if len(of_sets) > 1:
                scores[split] |= {f"{name}_{self.metric}": found[self.metric] for name, found in of_sets.items()}
        return scores

    def _scores(self, grades: beir.Grades, rankings: Rankings) -> dict[str, float]:
        if self.is_paper:
            return {"paper_ndcg@10": paper_ndcg(grades, rankings)}
        return ranking_scores(grades, rankings)

    def dataset(self, files: Mapping[Split, DataFile]) -> str:
        """Folder name of the training collection, or else of the test collection; for pairs, the name of their file."""
        train = files.get(Split.TRAIN, files[Split.TEST])
        assert isinstance(train, Path)
        if not beir.is_beir(train):
            return super().dataset(files)
        return train.resolve().name if train.is_dir() else beir.collection_folder(train).name

    def files_of(self, split: Split, path: DataFile) -> list[Path]:
        """The judgements of the split, with documents and queries."""
        if not isinstance(path, Path) or not beir.is_beir(path):
            return super().files_of(split, path)
        file = beir.judgements_file(path, split=beir.SPLITS[split])
        return [file, *beir.collection_files(file)]

    @staticmethod
    def usage(model: Path) -> str:
        """Python code that loads `model` as a SentenceTransformer."""
        return f"sentence_transformers.SentenceTransformer({str(model)!r}).encode_query('a query')"

    def save(self, network: nn.Module, folder: Path, data: JudgedSplits) -> None:
        """Write a SentenceTransformer folder, from which AutoModel loads the encoder."""
        embedder = cast("SentenceTransformer", network)
        module: Any = embedder[0]
        save_encoder(folder, module.model, modules_of(embedder))
