from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests.support.hf_encoders import EOS, WORDS, save_encoder
from tests.support.retrieval import word_collection, write_beir
from tests.support.text import read_lines
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Split, open_source
from toolkit.finetuning.inputs import encode_texts, framed_source, paper_inputs, paper_length
from toolkit.finetuning.ir.embedding import new_embedder, search
from toolkit.finetuning.ir.ranking_metrics import paper_ndcg, ranking_scores
from toolkit.finetuning.ir.task import Retrieval, RetrievalSettings

FAMILIES = ("eurobert", "bert", "roberta", "modernbert")
QUICK = RetrievalSettings(learning_rate=1e-3, seed=3, steps=3, batch_rows=4)


def run(tmp_path, collection, *, settings=QUICK, family="eurobert", output="out", **more):
    model, output = tmp_path / family, tmp_path / output
    if not model.exists():
        save_encoder(family, model)
    given = {"train": collection, "test": collection} | more
    return finetune("ir", model, output=output, settings=settings, **given), output


def reloaded(output):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(output / "model"), device="cpu")


def test_prompts_and_pooling_are_the_folders(tmp_path):
    collection, settings = word_collection(tmp_path / "words"), QUICK.model_copy(update={"query_prompt": "w0 "})
    result, output = run(tmp_path, collection, settings=settings, validation=collection)
    assert set(result.validation) == set(result.test) == {"ndcg@10", "mrr@10", "recall@100"}
    assert (result.metric, result.dataset, result.majority) == ("ndcg@10", "words", None)
    predictions = read_lines(output / "predictions.jsonl")
    assert [row["id"] for row in predictions] == [f"q{number}" for number in range(60, 90)]
    assert {len(set(row["ranking"])) for row in predictions} == {100}
    grades = {f"q{number}": {f"d{number}": 1} for number in range(60, 90)}
    assert ranking_scores(grades, {row["id"]: row["ranking"] for row in predictions}) == result.test
    embedder = reloaded(output)
    assert embedder.prompts == {"query": "w0 ", "document": ""}
    plain = embedder.encode(["w0 w1", "w0 w2"], normalize_embeddings=True)
    np.testing.assert_allclose(embedder.encode_query(["w1", "w2"], normalize_embeddings=True), plain, atol=1e-6)
    inputs = AutoTokenizer.from_pretrained(output / "model")("w1 w2 w3", return_tensors="pt")
    pooled = AutoModel.from_pretrained(output / "model")(**inputs).last_hidden_state[0].mean(dim=0).detach().numpy()
    np.testing.assert_allclose(embedder.encode("w1 w2 w3"), pooled, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_folder_tokenizes_as_other_families_do(tmp_path, family):
    source = framed_source(
        open_source(str(save_encoder(family, tmp_path / family)), max_length=10), protocol="standard"
    )
    texts = ["w1", "w2 w3 unknown", " ".join(WORDS)]
    embedder = new_embedder(source, prompts={"query": "", "document": ""})
    ours, _ = encode_texts(source, texts)
    batch = embedder.preprocess(texts)
    rows = [
        [int(id_) for id_, seen in zip(ids, mask, strict=True) if seen]
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    assert rows == [row["input_ids"] for row in ours]
    assert {row[-1] for row in rows} == {EOS}
    assert len(rows[-1]) == 10


def test_the_paper_adds_an_end_alone(tmp_path):
    for family in ("eurobert", "bert"):
        source = replace(open_source(str(save_encoder(family, tmp_path / family))), max_length=2048)
        source = framed_source(source, protocol="paper")
        embedder = new_embedder(source, prompts={"query": "Query: ", "document": "Document: "})
        texts = ["w1 w2", "w3"]
        ours, _ = paper_inputs(texts, source)
        ids = [embedder.tokenizer(text).input_ids for text in texts]
        end = [] if source.tokenizer.eos_token is None else [EOS]
        assert ids == [row["input_ids"] for row in ours] == [[6, 7, *end], [8, *end]]
        assert embedder.max_seq_length == paper_length(source) == 2028


@pytest.mark.parametrize("changes", [{}, {"chunk_rows": 2}, {"protocol": "paper"}])
@pytest.mark.parametrize("num_negatives", [0, 1])
def test_the_loss_by_hand(tmp_path, changes, num_negatives):
    source = framed_source(open_source(str(save_encoder("eurobert", tmp_path / "model"))), protocol="standard")
    embedder = new_embedder(source, prompts={"query": "", "document": ""})
    columns = [WORDS[:6], WORDS[6:12], WORDS[12:18]][: 2 + num_negatives]
    queries, *documents = (torch.from_numpy(embedder.encode(texts, normalize_embeddings=True)) for texts in columns)
    cosines = queries @ torch.cat(documents).T
    expected = torch.nn.functional.cross_entropy(20 * cosines, torch.arange(6))
    loss = Retrieval(RetrievalSettings(**changes)).ranking_loss(embedder)
    found = loss([embedder.preprocess(texts) for texts in columns], torch.empty(0))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def small(folder, qrels, documents=12, texts=()):
    rows = [{"_id": f"d{n}", "title": f"w{n}", "text": dict(texts).get(n, "w1 w2")} for n in range(documents)]
    return write_beir(folder, rows, [{"_id": f"q{n}", "text": f"w{n}"} for n in range(40)], qrels)


def test_the_paper_searches_what_validation_and_test_judge(tmp_path):
    judged = {"train": [(f"q{n}", f"d{n}", 1) for n in range(4)], "dev": [("q9", "d5", 1), ("q9", "d6", 0)]}
    collection = small(tmp_path / "set", judged | {"test": [("q7", "d7", 3), ("q7", "d8", 0), ("q8", "d9", 1)]})
    settings = RetrievalSettings(protocol="paper", learning_rate=1e-3, steps=2, batch_rows=4)
    result, output = run(tmp_path, collection, settings=settings, validation=collection)
    predictions = read_lines(output / "predictions.jsonl")
    assert [row["id"] for row in predictions] == ["q7", "q8"]
    assert {tuple(sorted(row["ranking"])) for row in predictions} == {("d5", "d6", "d7", "d8", "d9")}
    assert (result.metric, set(result.test)) == ("paper_ndcg@10", {"paper_ndcg@10"})
    rankings = {row["id"]: row["ranking"] for row in predictions}
    assert result.test["paper_ndcg@10"] == paper_ndcg({"q7": {"d7": 3, "d8": 0}, "q8": {"d9": 1}}, rankings)
    embedder = reloaded(output)
    assert embedder.prompts == {"query": "Query: ", "document": "Document: "}


def test_the_paper_cuts_validation_queries_off_training(tmp_path):
    judged = {"train": [(f"q{n}", f"d{n % 12}", 1) for n in range(40)], "test": [("q7", "d7", 1), ("q8", "d9", 1)]}
    task = Retrieval(RetrievalSettings(protocol="paper"))
    data = task.read(dict.fromkeys((Split.TRAIN, Split.TEST), small(tmp_path / "set", judged)))
    train, validation = (set(data.judgements[split].grades) for split in (Split.TRAIN, Split.VALIDATION))
    assert (len(train), len(validation), train & validation) == (38, 2, set())
    assert data.searched[Split.TEST] == ["d7", "d9"]
    assert len(data.searched[Split.VALIDATION]) <= 2


@pytest.mark.parametrize(("protocol", "text"), [("standard", "w3 w1 w2"), ("paper", "w3. w1 w2")])
def test_pairs_hold_title_and_text_and_judged_negatives(tmp_path, protocol, text):
    rows = [("q1", "d3", 1), ("q1", "d4", 2), ("q1", "d5", 0), ("q2", "d6", 1)]
    task = Retrieval(RetrievalSettings(protocol=protocol))
    collection = small(tmp_path / "set", {"train": rows, "dev": rows, "test": rows}, texts=[(5, ""), (6, "w0")])
    data = task.read(dict.fromkeys(Split, collection))
    source = framed_source(open_source(str(save_encoder("eurobert", tmp_path / "model"))), protocol="standard")
    pairs = [row["pair"] for row in task.encode(data, source)[Split.TRAIN]]
    assert (pairs[0].query, pairs[0].positive) == ("w1", text)
    # With the query's own text.
    assert [len(pair.relevant) for pair in pairs] == [3, 3, 2]
    assert [pair.negatives for pair in pairs] == ([("w5",), ("w5",), ()] if protocol == "standard" else [()] * 3)


def test_documents_without_text_are_neither_trained_on_nor_found(tmp_path, capsys):
    rows = [{"_id": "d0", "title": "", "text": ""}, *({"_id": f"d{n}", "text": f"w{n}"} for n in range(1, 5))]
    judged = [("q0", "d0", 1), ("q1", "d1", 1), ("q2", "d2", 1)]
    queries = [{"_id": f"q{n}", "text": f"w{n}"} for n in range(3)]
    collection = write_beir(tmp_path / "set", rows, queries, {"train": judged, "test": judged})
    result, output = run(tmp_path, collection)
    assert "1 relevant document without text left out" in " ".join(capsys.readouterr().out.split())
    predictions = read_lines(output / "predictions.jsonl")
    assert sorted(predictions[0]["ranking"]) == ["d1", "d2", "d3", "d4"]
    assert result.test["recall@100"] == pytest.approx(2 / 3)


def test_a_query_that_is_a_document_does_not_find_itself(tmp_path):
    """As in ArguAna and Quora. By the id alone, unrelated documents would go where both are numbered from 0."""
    rows = [{"_id": str(n), "title": "w0" if n == 2 else "", "text": f"w{n}"} for n in range(1, 5)]
    queries = [{"_id": str(n), "text": f"w{9 if n == 4 else n}"} for n in range(1, 5)]
    collection = write_beir(
        tmp_path / "set", rows, queries, {"train": (), "test": [("1", "3", 1), ("2", "3", 1), ("4", "3", 1)]}
    )
    task = Retrieval(RetrievalSettings())
    data = task.read({Split.TEST: collection})
    predictions = task.decode(data, {}, {Split.TEST: [np.arange(4)] * 3})
    assert predictions[Split.TEST] == [
        {"id": "1", "ranking": ["2", "3", "4"]},
        {"id": "2", "ranking": ["1", "3", "4"]},
        {"id": "4", "ranking": ["1", "2", "3", "4"]},
    ]
    assert task.score(data, predictions)[Split.TEST]["mrr@10"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 3) / 3)


def test_rankings_without_the_query_have_a_hundred_documents(tmp_path):
    words = word_collection(tmp_path / "words")
    documents = (words / "corpus.jsonl").read_text()
    (words / "queries.jsonl").write_text(documents)
    for split, judged in (("train", range(30)), ("dev", range(30, 60)), ("test", range(60, 90))):
        rows = "".join(f"d{n}\td{n + 1}\t1\n" for n in judged)
        (words / "qrels" / f"{split}.tsv").write_text(rows)
    _, output = run(tmp_path, words)
    rankings = {row["id"]: row["ranking"] for row in read_lines(output / "predictions.jsonl")}
    assert {len(ranking) for ranking in rankings.values()} == {100}
    assert not any(query in ranking for query, ranking in rankings.items())


@pytest.mark.parametrize("has_same_documents", [True, False])
def test_documents_that_two_splits_search_are_encoded_once(tmp_path, monkeypatch, has_same_documents):
    words = word_collection(tmp_path / "words")
    other = words if has_same_documents else small(tmp_path / "other", {"dev": [("q1", "d1", 1)]})
    source = framed_source(open_source(str(save_encoder("eurobert", tmp_path / "model"))), protocol="standard")
    task = Retrieval(QUICK)
    data = task.read({Split.TRAIN: words, Split.VALIDATION: other, Split.TEST: words})
    network, features = task.network(data, source), dict(task.encode(data, source))
    del features[Split.TRAIN]
    encoded = []
    encode = network.encode_document

    def counting(texts, **options):
        encoded.append(len(texts))
        return encode(texts, **options)

    monkeypatch.setattr(network, "encode_document", counting)
    together = task.answer_splits(network, features, source)
    assert encoded == ([130] if has_same_documents else [12, 130])
    for split, inputs in features.items():
        alone = task.answer_splits(network, {split: inputs}, source)
        np.testing.assert_array_equal(alone[split], together[split])


def test_judgements_are_named_from_inside_their_folder(tmp_path, monkeypatch):
    words = word_collection(tmp_path / "words")
    monkeypatch.chdir(words / "qrels")
    task, files = Retrieval(RetrievalSettings()), {Split.TRAIN: Path("train.tsv"), Split.TEST: Path("test.tsv")}
    assert list(task.read(files).judgements[Split.TEST].grades)[:2] == ["q60", "q61"]
    assert task.dataset(files) == "words"


def test_linked_judgements_belong_to_the_folder_that_has_the_link(tmp_path):
    """Those of two collections may be stored in one place."""
    words, other = word_collection(tmp_path / "words"), small(tmp_path / "other", {"test": [("q1", "d1", 1)]})
    store = tmp_path / "store"
    store.mkdir()
    for number, file in enumerate((words / "qrels" / "train.tsv", other / "qrels" / "test.tsv")):
        file.rename(store / str(number))
        file.symlink_to(store / str(number))
    data = Retrieval(RetrievalSettings()).read({Split.TRAIN: words, Split.TEST: other})
    assert [len(judged.collection.documents) for judged in data.judgements.values()] == [130, 12]


def test_room_for_text_is_checked(tmp_path):
    with pytest.raises(UserError, match="leaves no room for text: the tokenizer adds 2 special tokens"):
        run(
            tmp_path,
            word_collection(tmp_path / "words"),
            family="bert",
            settings=QUICK.model_copy(update={"max_length": 2}),
        )


def test_the_paper_fixes_prompts_and_loss():
    with pytest.raises(ValueError, match="fixes query_prompt = 'Query: '"):
        RetrievalSettings(protocol="paper", query_prompt="Q: ")
    assert RetrievalSettings(protocol="paper").in_force.chunk_rows == 4


def test_equal_documents_come_in_the_order_of_the_corpus(tmp_path):
    source = framed_source(open_source(str(save_encoder("eurobert", tmp_path / "model"))), protocol="standard")
    embedder = new_embedder(source, prompts={"query": "", "document": ""})
    ((ranking,),) = search(embedder, [["w1"]], ["w2", "w1", "w1", "w1", "w1"], depth=3, rows=8)
    assert ranking.tolist() == [1, 2, 3]


def test_search_is_exact_over_several_chunks(tmp_path, monkeypatch):
    from toolkit.finetuning.ir import embedding

    source = framed_source(open_source(str(save_encoder("eurobert", tmp_path / "model"))), protocol="standard")
    embedder = new_embedder(source, prompts={"query": "w7 ", "document": ""})
    documents = [f"{one} {other}" for one in WORDS[:9] for other in WORDS[9:20]]
    monkeypatch.setattr(embedding, "_DOCUMENTS_AT_ONCE", 10)
    found, *others = search(embedder, [WORDS[:5], WORDS[5:9]], documents, depth=20, rows=8)
    for queries, expected in ((WORDS[:5], found), (WORDS[5:9], *others)):
        (alone,) = search(embedder, [queries], documents, depth=20, rows=8)
        np.testing.assert_array_equal(alone, expected)
    options = {"normalize_embeddings": True}
    scores = embedder.encode_query(WORDS[:5], **options) @ embedder.encode_document(documents, **options).T
    for row, ranking in zip(scores, found, strict=True):
        np.testing.assert_allclose(row[ranking], np.sort(row)[::-1][:20], atol=1e-6)
