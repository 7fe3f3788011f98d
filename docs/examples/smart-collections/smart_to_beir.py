r"""A BEIR folder from a test collection in SMART's format, such as Cranfield and CISI.

    python smart_to_beir.py COLLECTION BEIR [--splits train dev test]

A collection's folder holds documents (`cran.all.1400`, `CISI.ALL`), queries (`cran.qry`, `CISI.QRY`) and judgements
(`cranqrel`, `CISI.REL`). An entry begins with `.I NUMBER`, its fields with a letter: `.T` title, `.W` text. Judgements
number queries by position in their file, which is not always what `.I` says. Their columns are one of

- query, document, code (Cranfield): 1 is a complete answer, 4 of minimum interest, 5 of none; the grade is 5 - code.
  The code -1, once for each query, names the paper that the query came from: such a row is no judgement.
- query, 0, document, grade (TREC).
- query and document, and whatever else (CISI): each row is a relevant document.

With several splits the queries are dealt in order, a fifth for each split but the first, which gets the rest:
neighbouring queries often stem from one paper and share documents, so a random draw would train on the answers of test
queries.
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

Entry = tuple[str, dict[str, str]]
"""Number, and texts by the letter of their field."""


def convert(collection: Path, folder: Path, splits: Sequence[str] = ("test",)) -> None:
    """Write `folder`, which is not there yet."""
    documents = dict(_entries(_only(collection, r"\.all(\.\d+)?$")))
    queries = {str(place): text for place, (_, text) in enumerate(_entries(_only(collection, r"\.qry$")), start=1)}
    judged = list(_judged([line.split() for line in _lines(_only(collection, r"(qrels?|\.rel)$")) if line.strip()]))
    (folder / "qrels").mkdir(parents=True)
    _write(folder / "corpus.jsonl", (_document(number, fields) for number, fields in documents.items()))
    _write(folder / "queries.jsonl", ({"_id": number, "text": fields["W"]} for number, fields in queries.items()))
    rest = list(dict.fromkeys(query for query, _, _ in judged))
    num_fifth = max(1, len(rest) // 5)
    for split in reversed(splits):
        rest, dealt = (rest[:-num_fifth], rest[-num_fifth:]) if split != splits[0] else ([], rest)
        rows = ("\t".join(map(str, row)) for row in judged if row[0] in dealt)
        (folder / "qrels" / f"{split}.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def _document(number: str, fields: dict[str, str]) -> dict[str, str]:
    """A title that the text repeats at its beginning, as in Cranfield, is kept once."""
    title = fields.get("T", "")
    return {"_id": number, "title": title, "text": fields.get("W", "").removeprefix(title).strip()}


def _judged(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, int]]:
    """Query, document and grade."""
    is_trec = all(len(row) == 4 and row[1] == "0" for row in rows)
    for row in rows:
        if is_trec:
            yield row[0], row[2], int(row[3])
        elif len(row) != 3:
            yield row[0], row[1], 1
        elif row[2] != "-1":
            yield row[0], row[1], 5 - int(row[2])


def _entries(path: Path) -> Iterator[Entry]:
    for block in re.split(r"^\.I ", "\n".join(_lines(path)), flags=re.M)[1:]:
        number, *fields = re.split(r"^\.([A-Z])[ \t]*$", block, flags=re.M)
        texts: dict[str, str] = {}
        for letter, text in zip(fields[::2], fields[1::2], strict=True):
            texts[letter] = " ".join(f"{texts.get(letter, '')} {text}".split())
        yield number.strip(), texts


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(path for path in folder.iterdir() if re.search(pattern, path.name, re.I))
    if len(found) != 1:
        raise SystemExit(f"{folder}: expected one file named {pattern}, found {[path.name for path in found]}")
    return found[0]


def _lines(path: Path) -> list[str]:
    # Files of that time are ASCII; copies of them have stray bytes of Latin-1.
    return path.read_bytes().decode("latin-1").replace("\r\n", "\n").split("\n")


def _write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path, help="folder in SMART's format")
    parser.add_argument("folder", type=Path, help="the BEIR folder to write")
    parser.add_argument("--splits", nargs="+", default=["test"], help="what the queries are dealt among, in order")
    options = parser.parse_args()
    convert(options.collection, options.folder, options.splits)
