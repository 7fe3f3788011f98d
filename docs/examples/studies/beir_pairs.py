"""Pairs for `toolkit finetune ir --train` from a BEIR folder's training judgements: beir_pairs.py BEIR PAIRS.jsonl"""

import csv
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path


def rows(folder: Path, name: str) -> Iterator[dict[str, str]]:
    """Of a file of the collection, packed or not."""
    plain, packed = folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"
    with gzip.open(packed, "rt", encoding="utf-8") if packed.exists() else plain.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def main(folder: Path, pairs: Path) -> None:
    """Write a pair for each relevant document of each training query."""
    queries = {row["_id"]: row["text"] for row in rows(folder, "queries")}
    documents = {row["_id"]: f"{row.get('title', '')} {row['text']}".strip() for row in rows(folder, "corpus")}
    with (folder / "qrels" / "train.tsv").open(encoding="utf-8") as lines, pairs.open("w", encoding="utf-8") as out:
        for query, document, grade in csv.reader(lines, delimiter="\t"):
            if grade.isdigit() and int(grade) > 0:
                json.dump({"query": queries[query], "positive": documents[document]}, out)
                out.write("\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
