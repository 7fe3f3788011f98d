"""Make the text and the tokenizer that the quickstart travels with; the labelled set is `quickstart_labels.py`.

    python benchmarks/quickstart_data.py SOURCE... --output toolkit/quickstart

SOURCE: files of Wikipedia articles, `.jsonl.gz` or `.parquet`, with the columns id, url, title, text. Articles are
drawn by the hash of their id, so that the same sources give the same files whatever order they come in; validation
articles are never training articles. The tokenizer sees the training text alone.
"""

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from preprocess_inputs import read_columns

from tokenization import train_bpe

TRAIN_BYTES = 10_000_000
VALIDATION_BYTES = 400_000
VOCABULARY_SIZE = 8192
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="+", type=Path)
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


if __name__ == "__main__":
    main()
