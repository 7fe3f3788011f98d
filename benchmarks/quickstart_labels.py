"""Make the labelled set that the quickstart travels with: does a sentence mention a named entity?

    python benchmarks/quickstart_labels.py DEV.iob2 TEST.iob2 --output toolkit/quickstart/entity

DEV and TEST: `en_ewt-ud-dev.iob2` and `en_ewt-ud-test.iob2` of UNER English-EWT (<https://www.universalner.org>), whose
entities were marked by people. The text of a sentence is its `# text` line; its label is `entity` where any token bears
a tag other than O, and `none` elsewhere. Sentences of fewer than five words are left out, and from DEV those that stand
in TEST as well.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

NUM_VALIDATION, NUM_TRAIN = 200, 300
MIN_WORDS = 5
TEXT_MARK = "# text = "
TAG_COLUMN = 2


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dev", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    dev, test = list(read_sentences(arguments.dev)), list(read_sentences(arguments.test))
    random.Random(0).shuffle(dev)
    tested = {text for text, _ in test}
    dev = [(text, label) for text, label in dev if text not in tested]
    write_tsv(dev[NUM_VALIDATION : NUM_VALIDATION + NUM_TRAIN], arguments.output / "train.tsv")
    write_tsv(dev[:NUM_VALIDATION], arguments.output / "validation.tsv")
    write_tsv(test, arguments.output / "test.tsv")


if __name__ == "__main__":
    main()
