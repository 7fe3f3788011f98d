"""Real text as the files that all contenders read: one JSONL file, and two of JSONL and of Parquet of equal size.

Three amounts: all of it; a quarter of it; and a big one, all of it again and again with the documents in another order
and every word that occurs once in all of it spelled with other vowels. A cache of words seen before is therefore worth
there what it is worth on new text: each copy brings about as many new words as an equal amount of text would.
"""

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

VOWELS = "aeiou"
WORD = re.compile("[A-Za-z]+")
ROWS_A_GROUP = 1000
NUM_FILES = 2


@dataclass(frozen=True)
class Amount:
    """One amount of text: where it is, as one JSONL file and as folders of two files, and how much it is."""

    jsonl: Path
    jsonl_folder: Path
    parquet_folder: Path
    documents: int
    text_bytes: int


def read_documents(folder: Path) -> list[str]:
    """Every text below a folder that is not empty, in one shuffled order. `.txt` files are one document each."""
    documents = [text for path in sorted(folder.rglob("*")) for text in _read(path) if text]
    random.Random(0).shuffle(documents)
    return documents


def thinned(documents: list[str], share: float) -> list[str]:
    """That share of the documents and about that share of the bytes: as many of each length, in the same order."""
    by_length = sorted(range(len(documents)), key=lambda number: len(documents[number]))
    kept = {number for rank, number in enumerate(by_length) if int((rank + 1) * share) > int(rank * share)}
    return [text for number, text in enumerate(documents) if number in kept]


def changed_copies(documents: list[str], num_copies: int) -> Iterator[str]:
    """The documents, then copies of them in other orders, with other vowels in the words that occur once."""
    if num_copies > len(VOWELS):
        raise SystemExit(
            f"{num_copies} copies of the text are needed, {len(VOWELS)} can be told apart: give more text."
        )
    counts = Counter(word for text in documents for word in WORD.findall(text))
    rare = {word for word, count in counts.items() if count == 1}
    yield from documents
    for copy in range(1, num_copies):
        turned = str.maketrans(VOWELS, VOWELS[copy:] + VOWELS[:copy])
        spelled = {word: word.translate(turned) for word in rare}
        order = list(documents)
        random.Random(copy).shuffle(order)
        for text in order:
            yield WORD.sub(lambda match, spelled=spelled: spelled.get(match[0], match[0]), text)  # type: ignore[misc]


def write_amount(documents: Iterator[str] | list[str], folder: Path, *, has_folders: bool = True) -> Amount:
    """Write the files of an amount; without `has_folders` the one JSONL file alone."""
    folder.mkdir(parents=True)
    amount_files = (folder / "text.jsonl", folder / "jsonl", folder / "parquet")
    kept, num_documents, text_bytes = [], 0, 0
    with amount_files[0].open("w", encoding="utf-8") as file:
        for text in documents:
            file.write(_line(text))
            num_documents += 1
            text_bytes += len(text.encode())
            if has_folders:
                kept.append(text)
    if has_folders:
        for path in amount_files[1:]:
            path.mkdir()
        for number, part in enumerate(_equal_parts(kept)):
            (amount_files[1] / f"part-{number}.jsonl").write_text("".join(map(_line, part)), encoding="utf-8")
            columns = {"text": part}
            pq.write_table(pa.table(columns), amount_files[2] / f"part-{number}.parquet", row_group_size=ROWS_A_GROUP)
    return Amount(*amount_files, documents=num_documents, text_bytes=text_bytes)


def _equal_parts(documents: list[str]) -> list[list[str]]:
    """As many lists as there are files, each document in the one that is smallest so far."""
    parts: list[list[str]] = [[] for _ in range(NUM_FILES)]
    sizes = [0] * NUM_FILES
    for text in documents:
        smallest = sizes.index(min(sizes))
        parts[smallest].append(text)
        sizes[smallest] += len(text)
    return parts


def _line(text: str) -> str:
    return json.dumps({"text": text}, ensure_ascii=False) + "\n"


def _read(path: Path) -> Iterator[str]:
    if path.suffix == ".txt":
        yield path.read_bytes().decode()
    elif path.name.endswith((".parquet", ".jsonl", ".jsonl.gz", ".json.gz")):
        yield from (row["text"] for row in read_columns(path, ["text"]))


def read_columns(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows of a .parquet file, or of lines of JSON, as they are or in .gz."""
    if path.suffix == ".parquet":
        yield from pq.read_table(path, columns=list(columns)).to_pylist()
        return
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for line in file:
            row = json.loads(line)
            yield {column: row[column] for column in columns}
