"""The corpora that other tests stand on."""

from pathlib import Path

import numpy as np

from toolkit.data import Corpus
from toolkit.testing.corpora import random_documents, write_token_corpus


def test_random_documents_keep_to_their_bounds() -> None:
    documents = random_documents(200, vocabulary_size=9, min_length=3, max_length=6, first_id=2, seed=1)
    assert {document.size for document in documents} == {3, 4, 5, 6}
    assert set(np.concatenate(documents).tolist()) == set(range(2, 9))
    assert documents[0].tolist() != random_documents(1, vocabulary_size=9, seed=2)[0].tolist()


def test_a_corpus_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_token_corpus(tmp_path / name, random_documents(20, vocabulary_size=9), vocabulary_size=9, shards=2)
    for path in (tmp_path / "first").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "second" / path.relative_to(tmp_path / "first")).read_bytes()


def test_transformers_load_its_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_token_corpus(tmp_path, [np.arange(9)], vocabulary_size=9, bos=1, eos=2, mask=8)
    tokenizer = AutoTokenizer.from_pretrained(Corpus(tmp_path).tokenizer_folder)
    assert tokenizer("t5 t7 t2").input_ids == [5, 7, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id) == (
        1,
        2,
        None,
        8,
    )
    assert len(tokenizer) == 9
