"""An embedding model from an exported encoder, with sentence-transformers alone.

    python train.py MODEL TEXT.parquet OUTPUT [--steps 200] [--rate 5e-5] [--nanobeir]

First stage: first sentences find the rest of their documents, with in-batch negatives. Then hard negatives are mined
with that model, and a second stage trains on them, for shorter vectors too (Matryoshka).
"""

import argparse
from pathlib import Path

from datasets import Dataset, load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator, NanoBEIREvaluator
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from sentence_transformers.util import mine_hard_negatives
from torch import nn


def pairs_of(path: Path) -> Dataset:
    """Pairs of a document's first sentence and its next 500 characters."""
    texts = load_dataset("parquet", data_files=str(path), split="train")["text"]
    cut = [text.partition(". ") for text in texts]
    pairs = {first: rest[:500] for first, _, rest in cut if 20 < len(first) < 300 and len(rest) > 100}
    return Dataset.from_dict({"anchor": [*pairs], "positive": [*pairs.values()]})


def train(model: SentenceTransformer, data: Dataset, loss: nn.Module, folder: Path, *, steps: int, rate: float) -> None:
    """A stage: no batch has a text twice, since the other documents of a batch are the negatives of a query."""
    arguments = SentenceTransformerTrainingArguments(
        str(folder), max_steps=steps, learning_rate=rate, warmup_steps=steps // 10, per_device_train_batch_size=32,
        batch_sampler="no_duplicates", save_strategy="no", report_to="none", seed=0,
    )  # fmt: skip
    SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss).train()


def main() -> None:
    """Both stages, with a score before and after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "text", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=5e-5, help="peak learning rate of the first stage")
    parser.add_argument("--nanobeir", action="store_true", help="score on NanoBEIR, from the hub")
    asked = parser.parse_args()
    model, pairs = SentenceTransformer(str(asked.model)), pairs_of(asked.text).train_test_split(0.1, seed=0)
    queries, documents = (
        {str(n): text for n, text in enumerate(pairs["test"][name])} for name in ("anchor", "positive")
    )
    held_out = InformationRetrievalEvaluator(queries, documents, {n: {n} for n in queries}, write_csv=False)
    evaluate = NanoBEIREvaluator(write_csv=False) if asked.nanobeir else held_out
    scores = {"exported": evaluate(model)[evaluate.primary_metric]}

    train(model, pairs["train"], MultipleNegativesRankingLoss(model), asked.output, steps=asked.steps, rate=asked.rate)
    scores["first stage"] = evaluate(model)[evaluate.primary_metric]
    mined = mine_hard_negatives(
        pairs["train"], model, num_negatives=1, range_min=5, relative_margin=0.05, verbose=False
    )
    width = model.get_embedding_dimension() or 0
    loss = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [width, width // 2, width // 4])
    train(model, mined, loss, asked.output, steps=asked.steps // 2, rate=asked.rate / 2)
    scores["second stage"] = evaluate(model)[evaluate.primary_metric]
    model.save_pretrained(str(asked.output / "model"))
    for stage, score in scores.items():
        print(f"{stage}: {evaluate.primary_metric} {score:.4f}")


if __name__ == "__main__":
    main()
