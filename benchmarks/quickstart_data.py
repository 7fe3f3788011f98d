"""Make the text and the tokenizer that the quickstart travels with; the labelled set is `quickstart_labels.py`.

    python benchmarks/quickstart_data.py SOURCE... --output toolkit/quickstart

SOURCE: files of Wikipedia articles, `.jsonl.gz` or `.parquet`, with the columns id, url, title, text. Articles are
drawn by the hash of their id, so that the same sources give the same files whatever order they come in; validation
articles are never training articles. The tokenizer sees the training text alone.
"""

import argparse
import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TRAIN_BYTES = 10_000_000
VALIDATION_BYTES = 400_000
VOCABULARY_SIZE = 8192
END_OF_TEXT, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"
COLUMNS = ("id", "url", "title", "text")
# Shorter ones are stubs; a longer one would be a noticeable share of the whole.
ARTICLE_CHARACTERS = range(500, 50_001)


def read_articles(source: Path) -> Iterator[dict[str, str]]:
    if source.suffix == ".parquet":
        yield from pq.read_table(source, columns=list(COLUMNS)).to_pylist()
        return
    with gzip.open(source, "rb") as file:
        for line in file:
            row = json.loads(line)
            yield {column: row[column] for column in COLUMNS}


def draw_articles(sources: list[Path]) -> list[dict[str, str]]:
    """All articles of a usable length, once each, in an order that depends on their ids alone."""
    articles = {article["id"]: article for source in sources for article in read_articles(source)}
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


def write_tokenizer(texts: list[str], folder: Path) -> None:
    """A byte-level BPE with its specials at ids 0, 1, 2, as a Hugging Face tokenizer folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT, PAD, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    named = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TEXT, pad_token=PAD, mask_token=MASK,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    named.save_pretrained(folder)
    num_tokens = sum(len(encoding) for encoding in tokenizer.encode_batch(texts))
    print(f"{folder}: {num_tokens:,} tokens of training text")


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
    write_tokenizer([article["text"] for article in train], arguments.output / "tokenizer")


if __name__ == "__main__":
    main()
