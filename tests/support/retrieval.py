"""Small test collections on disk."""

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.hf_encoders import WORDS

Judged = Sequence[tuple[str, str, int]]


def write_beir(
    folder: Path,
    documents: Sequence[Mapping[str, object]],
    queries: Sequence[Mapping[str, object]],
    qrels: Mapping[str, Judged],
    *,
    header: str = "query-id\tcorpus-id\tscore\n",
    compressed: bool = False,
) -> Path:
    """A BEIR folder."""
    (folder / "qrels").mkdir(parents=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in documents).encode()
    if compressed:
        (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines))
    else:
        (folder / "corpus.jsonl").write_bytes(lines)
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in queries), encoding="utf-8"
    )
    for split, rows in qrels.items():
        body = "".join(f"{query}\t{document}\t{grade}\n" for query, document, grade in rows)
        (folder / "qrels" / f"{split}.tsv").write_text(header + body, encoding="utf-8")
    return folder


def word_collection(folder: Path, *, num_documents: int = 130, num_queries: int = 90) -> Path:
    """Documents of eight words; a query is three words of the one relevant document. Thirds: train, dev, test."""
    draw = random.Random(0)
    documents = [draw.sample(WORDS, 8) for _ in range(num_documents)]
    queries = [draw.sample(documents[number], 3) for number in range(num_queries)]
    third = num_queries // 3
    judged = [(f"q{number}", f"d{number}", 1) for number in range(num_queries)]
    return write_beir(
        folder,
        [{"_id": f"d{number}", "title": "", "text": " ".join(words)} for number, words in enumerate(documents)],
        [{"_id": f"q{number}", "text": " ".join(words)} for number, words in enumerate(queries)],
        {"train": judged[:third], "dev": judged[third : 2 * third], "test": judged[2 * third :]},
    )
