"""Make what the quickstart travels with: text and its tokenizer, and sentences with labels.

    python benchmarks/quickstart_data.py SOURCE... --labelled DEV.iob2 TEST.iob2 --output toolkit/quickstart

SOURCE: files of Wikipedia articles, `.jsonl.gz` or `.parquet`, with the columns id, url, title, text. Articles are
drawn by the hash of their id, so that the same sources give the same files whatever order they come in; validation
articles are never training articles. The tokenizer sees the training text alone.

DEV and TEST: `en_ewt-ud-dev.iob2` and `en_ewt-ud-test.iob2` of UNER English-EWT (<https://www.universalner.org>), whose
entities were marked by people. The text of a sentence is its `# text` line; its label is `entity` where any token bears
a tag other than O, and `none` elsewhere. Sentences of fewer than five words are left out, and from DEV those that stand
in TEST as well.
"""

import argparse
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from preprocess_inputs import read_columns

from tokenization import train_bpe

TRAIN_BYTES = 10_000_000
VALIDATION_BYTES = 400_000
VOCABULARY_SIZE = 8192
NUM_LABELLED_VALIDATION, NUM_LABELLED_TRAIN = 200, 300
MIN_WORDS = 5
TEXT_MARK = "# text = "
TAG_COLUMN = 2
COLUMNS = ("id", "url", "title", "text")
# Shorter ones are stubs; a longer one would be a noticeable share of the whole.
ARTICLE_CHARACTERS = range(500, 50_001)


def draw_articles(sources: list[Path]) -> list[dict[str, str]]:
    """All articles of a usable length, once each, in an order that depends on their ids alone."""
    articles = {article["id"]: article for source in sources for article in read_columns(source, COLUMNS)}
    usable = [article for article in articles.values() if len(article["text"]) in ARTICLE_CHARACTERS]
    return sorted(usable, key=lambda article: hashlib.sha256(article["id"].encode()).digest())


def take(articles: Iterator[dict[str, str]], *, num_bytes: int) -> list[dict[str, str]]:
    """Articles until their text reaches `num_bytes` of UTF-8, in order of id (neighbours compress better)."""
    taken, total = [], 0
    while total < num_bytes:
        article = next(articles)
        taken.append(article)
        total += len(article["text"].encode())
    return sorted(taken, key=lambda article: int(article["id"]))


def write_parquet(articles: list[dict[str, str]], path: Path) -> None:
    table = pa.Table.from_pylist(articles, schema=pa.schema([(column, pa.string()) for column in COLUMNS]))
    # One page for the whole column: zstd finds what articles share only inside a page.
    pq.write_table(
        table, path, compression="zstd", compression_level=22, use_dictionary=False, data_page_size=1 << 28,
        write_batch_size=1 << 20, max_rows_per_page=1 << 20, write_statistics=False,
    )  # fmt: skip
    text_bytes = sum(len(article["text"].encode()) for article in articles)
    print(f"{path}: {len(articles):,} articles, {text_bytes:,} bytes of text, {path.stat().st_size:,} bytes")


def read_sentences(path: Path) -> Iterator[tuple[str, str]]:
    """Text and label of each sentence that is long enough."""
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        lines = block.strip("\n").split("\n")
        [text] = [line.removeprefix(TEXT_MARK).strip() for line in lines if line.startswith(TEXT_MARK)] or [""]
        tags = {line.split("\t")[TAG_COLUMN] for line in lines if line and not line.startswith("#")}
        if len(text.split()) >= MIN_WORDS and "\t" not in text:
            yield text, "entity" if tags - {"O"} else "none"


def write_tsv(rows: list[tuple[str, str]], path: Path) -> None:
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    share = sum(label == "entity" for _, label in rows) / len(rows)
    print(f"{path}: {len(rows):,} sentences, {share:.1%} with an entity, {path.stat().st_size:,} bytes")


def write_labelled(dev_path: Path, test_path: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    dev, test = list(read_sentences(dev_path)), list(read_sentences(test_path))
    random.Random(0).shuffle(dev)
    tested = {text for text, _ in test}
    dev = [(text, label) for text, label in dev if text not in tested]
    write_tsv(dev[NUM_LABELLED_VALIDATION:][:NUM_LABELLED_TRAIN], folder / "train.tsv")
    write_tsv(dev[:NUM_LABELLED_VALIDATION], folder / "validation.tsv")
    write_tsv(test, folder / "test.tsv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="+", type=Path)
    parser.add_argument("--labelled", nargs=2, required=True, type=Path, metavar=("DEV", "TEST"))
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    articles = iter(draw_articles(arguments.source))
    validation = take(articles, num_bytes=VALIDATION_BYTES)
    train = take(articles, num_bytes=TRAIN_BYTES)
    write_parquet(train, arguments.output / "wikipedia-train.parquet")
    write_parquet(validation, arguments.output / "wikipedia-validation.parquet")
    train_bpe(
        [article["text"] for article in train], vocabulary_size=VOCABULARY_SIZE, folder=arguments.output / "tokenizer"
    )
    write_labelled(*arguments.labelled, arguments.output / "entity")


if __name__ == "__main__":
    main()
