"""A SentenceTransformer as MODEL: what it does itself is kept, or what is left out is told."""

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from tests.support.hf_encoders import WORDS, save_encoder
from tests.support.old_readers import check_by_old_rules
from tests.support.retrieval import word_collection
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning.ir.task import RetrievalSettings

TEXTS = ["w1", "w2 W3 w4", " ".join(WORDS)]


def save_embedder(folder, *behind, family="bert", pooling="mean", pools_prompt=True, **options):
    """An encoder of a family behind what sentence-transformers puts there, in the library's own form."""
    transformer = modules.Transformer(str(save_encoder(family, folder / family)), max_seq_length=10)
    pooled = modules.Pooling(16, pooling, include_prompt=pools_prompt)
    SentenceTransformer(modules=[transformer, pooled, *behind], device="cpu", **options).save(str(folder / "model"))
    return folder / "model"


def unchanged(model, folder, **changes):
    """The folder that no step of training has changed, and its scores."""
    collection = word_collection(folder / "words", num_documents=12, num_queries=9)
    settings = RetrievalSettings(steps=0, **changes)
    result = finetune("ir", model, test=collection, output=folder / "out", settings=settings)
    assert (result.steps, result.dataset) == (0, "words")
    return SentenceTransformer(str(folder / "out/model"), device="cpu")


@pytest.mark.parametrize(
    ("family", "pooling", "more"),
    [
        ("bert", "mean", {}),
        ("bert", "cls", {"prompts": {"query": "w1 ", "passage": "w2 w5 "}}),
        ("modernbert", "max", {"prompts": {"web": "w7 ", "query": "w1 "}, "default_prompt_name": "web"}),
        ("eurobert", "lasttoken", {"prompts": {"query": "w1 w2 "}, "pools_prompt": False}),
        ("bert", ("mean", "weightedmean"), {}),
    ],
)
@pytest.mark.parametrize("is_normalized", [True, False])
def test_without_a_step_the_vectors_are_the_originals(tmp_path, capsys, family, pooling, more, is_normalized):
    behind = [modules.Normalize()] * is_normalized
    model = save_embedder(tmp_path, *behind, family=family, pooling=pooling, **more)
    theirs, ours = SentenceTransformer(str(model), device="cpu"), unchanged(str(model), tmp_path)
    for encode in ("encode", "encode_query", "encode_document"):
        expected = getattr(theirs, encode)(TEXTS)
        np.testing.assert_allclose(getattr(ours, encode)(TEXTS), expected, atol=1e-6)
        assert np.allclose(np.linalg.norm(expected, axis=1), 1) is is_normalized
    assert ours.max_seq_length == 10
    check_by_old_rules(tmp_path / "out/model")
    told = " ".join(capsys.readouterr().out.split())
    assert "is a SentenceTransformer: " in told
    assert "left out" not in told


def test_settings_come_before_what_is_stored(tmp_path):
    model = save_embedder(tmp_path, prompts={"query": "w1 ", "document": "w2 "})
    ours = unchanged(str(model), tmp_path, query_prompt="w9 ", max_length=8)
    assert (ours.prompts["query"], ours.prompts["document"], ours.max_seq_length) == ("w9 ", "w2 ", 8)


def test_what_is_left_out_is_told(tmp_path, capsys):
    model = save_embedder(tmp_path, modules.Dense(16, 8), similarity_fn_name="dot")
    assert unchanged(str(model), tmp_path).encode("w1").shape == (16,)
    told = " ".join(capsys.readouterr().out.split())
    assert "left out: Dense, comparison by dot (the cosine is used). Vectors differ from its own for that." in told


def test_a_step_of_training_needs_a_training_file(tmp_path):
    with pytest.raises(UserError, match="--train missing"):
        finetune("ir", save_embedder(tmp_path), test=tmp_path, output=tmp_path / "out", settings=RetrievalSettings())


def test_its_own_vectors_are_trained(tmp_path):
    """Its pooling and prompts are those of training too, and of a second round."""
    model = save_embedder(tmp_path, modules.Normalize(), pooling="cls", prompts={"query": "w1 "})
    collection = word_collection(tmp_path / "words", num_documents=12, num_queries=9)
    settings = RetrievalSettings(learning_rate=1e-2, steps=3, batch_rows=4)
    for number in range(2):
        output = tmp_path / f"out{number}"
        finetune("ir", str(model), train=collection, test=collection, output=output, settings=settings)
        before, after = (SentenceTransformer(str(folder), device="cpu") for folder in (model, output / "model"))
        assert not np.allclose(before.encode(TEXTS), after.encode(TEXTS), atol=1e-3)
        assert after.prompts["query"] == "w1 "
        assert json.loads((output / "model/1_Pooling/config.json").read_text())["pooling_mode_cls_token"] is True
        model = output / "model"
