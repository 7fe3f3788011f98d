"""A ModernBERT from elsewhere, there and back: in, MLM, out as a SentenceTransformer, `ir`, in again, MLM again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from tests.support.hf_decoders import save_decoder, save_tokenizer
from tests.support.retrieval import word_collection
from tests.support.text import sample_documents
from toolkit.checkpoint.read import open_checkpoint
from toolkit.run import load_run
from toolkit.testing.tolerances import HUGGING_FACE_LOGITS
from toolkit.training import pretrain

_SPECIALS = ("<s>", "</s>", "<pad>", "<mask>")
_TEXTS = ["The old miller paints the red door.", "A young fox counts seven small boats."]


def _train(init: Path, corpus: Path, run: Path) -> None:
    """`toolkit train adapt` without its ranks: two steps of eight rows of 64."""
    data = [f"init.from={init}", f"data.train={corpus}", f"run.dir={run}", "precision=fp32"]
    small = ["data.sequence_length=64", "schedule=[{objective='mlm', steps=2}]", "train.global_batch_rows=8"]
    rows = ["train.micro_batch_rows=8", "lr.warmup_steps=0", "lr.peak=1e-3", "log.every=1"]
    pretrain(load_run("adapt", [*data, *small, *rows]), ds_config="zero0")
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 2
    assert all(0 < loss < 9 for loss in losses)


@torch.no_grad()
def _outputs(auto: Any, folder: Path) -> torch.Tensor:
    batch = AutoTokenizer.from_pretrained(folder)(_TEXTS, padding=True, return_tensors="pt")
    outputs = auto.from_pretrained(folder).eval()(**batch)
    found = outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state
    return found[batch["attention_mask"].bool()]


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= HUGGING_FACE_LOGITS * max(1, float(other.abs().max())))


def test_each_step_takes_what_the_one_before_wrote(
    tmp_path: Path, toolkit: Callable[..., tuple[object, str, str]]
) -> None:
    def run(*words: object) -> None:
        assert toolkit(*words)[0] == 0

    hub, corpus, names = tmp_path / "hub", tmp_path / "corpus", ("first", "embedder", "tuned", "second", "last")
    first, embedder, tuned, second, last = (tmp_path / name for name in names)
    save_decoder("modernbert", hub, pad_token_id=2)
    save_tokenizer(hub, specials=_SPECIALS, pad_token="<pad>", mask_token="<mask>")
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in sample_documents(120)))

    run("convert", "--from-hf", hub, first)
    run("convert", "--to-hf", first, tmp_path / "again")
    assert _close(_outputs(AutoModelForMaskedLM, tmp_path / "again"), _outputs(AutoModelForMaskedLM, hub))

    run("preprocess", text, "--tokenizer", first, "--output", corpus, "--workers", 1)
    _train(first, corpus, tmp_path / "run")
    run("convert", "--to-hf", tmp_path / "run", embedder, "--sentence-transformers")
    run("convert", "--to-hf", tmp_path / "run", tmp_path / "encoder")
    _, loading = AutoModel.from_pretrained(embedder, output_loading_info=True)
    assert not any(loading.values())
    hidden = _outputs(AutoModel, embedder)
    assert _close(hidden, _outputs(AutoModel, tmp_path / "encoder"))
    assert not torch.equal(*(open_checkpoint(one).weight("model.norm.weight") for one in (first, tmp_path / "run")))

    collection = word_collection(tmp_path / "words", num_documents=12, num_queries=9)
    data = ("--train", collection, "--test", collection, "--set", "batch_rows=4")
    run("finetune", "ir", embedder, *data, "--steps", 0, "--output", tmp_path / "untouched")
    vectors = [
        SentenceTransformer(str(folder), device="cpu").encode(_TEXTS)
        for folder in (embedder, tmp_path / "untouched/model")
    ]
    np.testing.assert_allclose(*vectors, atol=1e-6)
    run("finetune", "ir", embedder, *data, "--steps", 2, "--lr", 1e-3, "--output", tuned)
    assert not _close(_outputs(AutoModel, tuned / "model"), hidden)

    run("convert", "--from-hf", tuned / "model", second, "--head", "new")
    run("convert", "--to-hf", second, last)
    assert _close(_outputs(AutoModel, last), _outputs(AutoModel, tuned / "model"))
    # The tokenizer is the one it came with: the corpus is not made again.
    _train(second, corpus, tmp_path / "run2")
    before, after = open_checkpoint(second), open_checkpoint(tmp_path / "run2")
    assert before.names == after.names
    assert not torch.equal(before.weight("head.dense.weight"), after.weight("head.dense.weight"))
