"""The repositories of the named data sets as the hub has them, tiny: their files, columns, types and label names."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GLUE_CARD = """---
dataset_info:
- config_name: mnli
  features:
  - {name: premise, dtype: string}
  - {name: hypothesis, dtype: string}
  - {name: label, dtype: {class_label: {names: {'0': entailment, '1': neutral, '2': contradiction}}}}
  - {name: idx, dtype: int32}
- config_name: qqp
  features:
  - {name: question1, dtype: string}
  - {name: question2, dtype: string}
  - {name: label, dtype: {class_label: {names: {'0': not_duplicate, '1': duplicate}}}}
  - {name: idx, dtype: int32}
- config_name: sst2
  features:
  - {name: sentence, dtype: string}
  - {name: label, dtype: {class_label: {names: {'0': negative, '1': positive}}}}
  - {name: idx, dtype: int32}
configs:
- config_name: mnli
  data_files:
  - {split: train, path: mnli/train-*}
  - {split: validation_matched, path: mnli/validation_matched-*}
  - {split: validation_mismatched, path: mnli/validation_mismatched-*}
  - {split: test_matched, path: mnli/test_matched-*}
  - {split: test_mismatched, path: mnli/test_mismatched-*}
- config_name: qqp
  data_files: [{split: train, path: qqp/train-*}, {split: validation, path: qqp/validation-*}]
- config_name: sst2
  data_files: [{split: train, path: sst2/train-*}, {split: validation, path: sst2/validation-*}]
---
"""
UNER_CARD = """---
dataset_info:
- config_name: en_ewt
  features:
  - {name: idx, dtype: string}
  - {name: text, dtype: string}
  - {name: tokens, list: string}
  - name: ner_tags
    list: {class_label: {names: {'0': O, '1': B-PER, '2': I-PER, '3': B-ORG, '4': I-ORG, '5': B-LOC, '6': I-LOC}}}
  - {name: annotator, list: string}
configs:
- config_name: en_ewt
  data_files:
  - {split: train, path: en_ewt/train-*}
  - {split: validation, path: en_ewt/validation-*}
  - {split: test, path: en_ewt/test-*}
- config_name: da_ddt
  data_files: [{split: train, path: da_ddt/train-*}]
---
"""
SQUAD_CARD = """---
configs:
- config_name: %s
  default: true
  data_files: [{split: train, path: %s/train-*}, {split: validation, path: %s/validation-*}]
---
"""
BEIR_CARD = """---
configs:
- config_name: corpus
  data_files: [{split: corpus, path: corpus/corpus-*}]
- config_name: queries
  data_files: [{split: queries, path: queries/queries-*}]
---
"""
NANO_SETS = (
    "ClimateFEVER", "DBPedia", "FEVER", "FiQA2018", "HotpotQA", "MSMARCO", "NFCorpus", "NQ", "QuoraRetrieval",
    "SCIDOCS", "ArguAna", "SciFact", "Touche2020",
)  # fmt: skip
SCRIPT = "raise SystemExit('code of a repository must not run')\n"
CONLL_LABELS = ("O", "B-ORG", "B-MISC", "B-PER", "I-PER", "B-LOC", "I-ORG", "I-MISC", "I-LOC")
"""In the order of tner/conll2003."""
ONTONOTES_LABELS = ("O", "B-CARDINAL", "B-DATE", "I-DATE", "B-PERSON", "I-PERSON", "B-NORP", "B-GPE", "I-GPE")
"""The first of 37, in the order of tner/ontonotes5."""
NUM_TRAIN = 41
"""Rows of the training splits that 5 % are cut from: 3 for validation."""


def write_repositories(root: Path) -> None:
    """Write all of them below the folder of a `HubServer`."""
    datasets = root / "datasets"
    _write_glue(datasets / "nyu-mll" / "glue")
    _write_tner(datasets / "tner" / "conll2003", CONLL_LABELS, ["train.json"])
    _write_tner(datasets / "tner" / "ontonotes5", ONTONOTES_LABELS, ["train00.json", "train01.json"])
    _write_uner(datasets / "BramVanroy" / "universal_ner")
    _write_squad(datasets / "rajpurkar" / "squad", "plain_text", num_unanswerable=0)
    _write_squad(datasets / "rajpurkar" / "squad_v2", "squad_v2", num_unanswerable=10)
    _write_record(datasets / "aps" / "super_glue")
    _write_msmarco(datasets / "BeIR")
    _write_nq(datasets / "BeIR")
    _write_mldr(datasets / "Shitao" / "MLDR")
    _write_nano_beir(datasets / "sentence-transformers" / "NanoBEIR-en")


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]], features: Any = None) -> None:
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_list([dict(row) for row in rows], features=features).to_parquet(path)


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def _write_table(path: Path, rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [("query-id", "corpus-id", "score"), *rows]
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))


def _write_glue(repository: Path) -> None:
    splits = {"train": NUM_TRAIN, "validation": 6}
    matched = {"train": NUM_TRAIN, "validation_matched": 6, "validation_mismatched": 5}
    matched |= {"test_matched": 4, "test_mismatched": 4}
    for split, count in splits.items():
        rows = [{"sentence": f"w{n % 7} {split} ", "label": n % 2, "idx": n} for n in range(count)]
        _write_parquet(repository / f"sst2/{split}-00000-of-00001.parquet", rows)
        pairs = [{"question1": f"w{n} a", "question2": f"w{n} b", "label": n % 2, "idx": n} for n in range(count)]
        _write_parquet(repository / f"qqp/{split}-00000-of-00001.parquet", pairs)
    for split, count in matched.items():
        labels = [-1 if split.startswith("test") else n % 3 for n in range(count)]
        rows = [{"premise": f"w{n} {split}", "hypothesis": f"w{n}", "label": labels[n], "idx": n} for n in range(count)]
        _write_parquet(repository / f"mnli/{split}-00000-of-00001.parquet", rows)
    (repository / "README.md").write_text(GLUE_CARD)


def _tagged(count: int, num_labels: int) -> list[dict[str, list[Any]]]:
    return [{"tokens": [f"w{n}", "in", "w5"], "tags": [n % num_labels, 0, num_labels - 1]} for n in range(count)]


def _write_tner(repository: Path, labels: Sequence[str], training: Sequence[str]) -> None:
    for name in training:
        _write_lines(repository / "dataset" / name, _tagged(12, len(labels)))
    _write_lines(repository / "dataset" / "valid.json", _tagged(5, len(labels)))
    _write_lines(repository / "dataset" / "test.json", _tagged(6, len(labels)))
    (repository / "dataset" / "label.json").write_text(json.dumps({tag: n for n, tag in enumerate(labels)}))
    (repository / f"{repository.name}.py").write_text(SCRIPT)
    (repository / "README.md").write_text("---\nlicense: other\n---\n")


def _write_uner(repository: Path) -> None:
    for split, count in (("train", 12), ("validation", 5), ("test", 6)):
        rows = [
            {
                "idx": f"id-{n}",
                "text": f"w{n} in w5",
                "tokens": [f"w{n}", "in", "w5"],
                "ner_tags": [n % 7, 0, 6],
                "annotator": ["x", "x", "x"],
            }
            for n in range(count)
        ]
        _write_parquet(repository / f"en_ewt/{split}-00000-of-00001.parquet", rows)
    _write_parquet(repository / "da_ddt/train-00000-of-00001.parquet", rows)
    (repository / "README.md").write_text(UNER_CARD)


def _write_squad(repository: Path, configuration: str, *, num_unanswerable: int) -> None:
    for split, count in (("train", NUM_TRAIN), ("validation", 6)):
        rows = []
        for n in range(count):
            context = f"w{n // 2} is in w{n // 2 + 1} or w3."
            answers = [{"text": f"w{n // 2}", "answer_start": 0}, {"text": "w3", "answer_start": context.index("w3")}]
            answers = [] if n < num_unanswerable and n % 2 else answers[: 1 if split == "train" else 2]
            columns = {key: [answer[key] for answer in answers] for key in ("text", "answer_start")}
            rows.append(
                {"id": f"{split}{n}", "title": f"title {n // 4}", "context": context, "question": f"what is w{n}?",
                 "answers": columns}
            )  # fmt: skip
        _write_parquet(repository / f"{configuration}/{split}-00000-of-00001.parquet", rows)
    (repository / "README.md").write_text(SQUAD_CARD % ((configuration,) * 3))


def _write_record(repository: Path) -> None:
    """The loading script on main; the hub's Parquet copy on its own branch, as of every script's data set."""
    repository.mkdir(parents=True)
    (repository / "super_glue.py").write_text(SCRIPT)
    (repository / "README.md").write_text("---\nlicense: other\n---\n")
    copy = repository.with_name(f"{repository.name}@refs%2Fconvert%2Fparquet")
    for split, count in (("train", NUM_TRAIN), ("validation", 6), ("test", 3)):
        rows = []
        for n in range(count):
            passage = f"w{n} met Ann.\n@highlight\nAnn left w{n} for Bo"
            spans = [(word, at) for word in ("Ann", "Bo") for at in range(len(passage)) if passage.startswith(word, at)]
            rows.append(
                {"passage": passage, "query": f"Then @placeholder saw w{n}", "entities": ["Ann", "Bo"],
                 "entity_spans": {"text": [word for word, _ in spans], "start": [at for _, at in spans],
                                  "end": [at + len(word) for word, at in spans]},
                 "answers": [] if split == "test" else ["Bo", "Ann"] if n % 2 else ["Ann"],
                 "idx": {"passage": n // 2, "query": n}}
            )  # fmt: skip
        _write_parquet(copy / f"record/{split}/0000.parquet", rows)


def _write_msmarco(folder: Path) -> None:
    repository = folder / "msmarco"
    corpus = [{"_id": str(n), "title": "", "text": f"w{n} passage"} for n in range(60)]
    _write_parquet(repository / "corpus/corpus-00000-of-00001.parquet", corpus)
    queries = [{"_id": str(1000 + n), "title": "", "text": f"w{n} query"} for n in range(50)]
    _write_parquet(repository / "queries/queries-00000-of-00001.parquet", queries)
    (repository / "README.md").write_text(BEIR_CARD)
    _write_table(folder / "msmarco-qrels/train.tsv", [(1000 + n, n, 1) for n in range(30)])
    _write_table(folder / "msmarco-qrels/dev.tsv", [(1030 + n, 30 + n, 1) for n in range(4)])
    graded = [(1040 + n, 40 + n + grade, grade) for n in range(3) for grade in (0, 1, 2, 3)]
    _write_table(folder / "msmarco-qrels/test.tsv", graded)
    (folder / "msmarco-qrels/README.md").write_text("---\nlicense: cc-by-sa-4.0\n---\n")


def _write_nq(folder: Path) -> None:
    repository = folder / "nq"
    corpus = [{"_id": f"doc{n}", "title": f"Title {n}", "text": f"w{n} document"} for n in range(20)]
    _write_parquet(repository / "corpus/corpus-00000-of-00001.parquet", corpus)
    queries = [{"_id": f"test{n}", "title": "", "text": f"w{n} question"} for n in range(10)]
    _write_parquet(repository / "queries/queries-00000-of-00001.parquet", queries)
    (repository / "README.md").write_text(BEIR_CARD)
    _write_table(
        folder / "nq-qrels/test.tsv", [(f"test{n}", f"doc{n + more}", 1) for n in range(10) for more in (0, 1)]
    )
    (folder / "nq-qrels/README.md").write_text("---\nlicense: cc-by-sa-4.0\n---\n")


def _write_mldr(repository: Path) -> None:
    english = repository / "mldr-v1.0-en"
    for split, first, count in (("train", 0, 8), ("dev", 8, 2), ("test", 10, 4)):
        rows = []
        for n in range(first, first + count):
            negatives = [{"docid": "doc-en-19", "text": "w19 long"}] if split == "train" else []
            positive = {"docid": f"doc-en-{n}", "text": f"w{n} long"}
            rows.append(
                {"query_id": f"q-en-{n}", "query": f"w{n} what", "positive_passages": [positive],
                 "negative_passages": negatives}
            )  # fmt: skip
        _write_lines(english / f"{split}.jsonl.gz", rows)
    _write_lines(english / "corpus.jsonl.gz", [{"docid": f"doc-en-{n}", "text": f"w{n} long"} for n in range(20)])
    _write_lines(repository / "mldr-v1.0-de" / "corpus.jsonl.gz", [{"docid": "doc-de-0", "text": "x"}])
    (repository / "MLDR.py").write_text(SCRIPT)


def _write_nano_beir(repository: Path) -> None:
    configurations = {"corpus": ("_id", "text"), "queries": ("_id", "text"), "qrels": ("query-id", "corpus-id")}
    card = "---\nconfigs:\n"
    for part in configurations:
        card += f"- config_name: {part}\n  data_files:\n"
        for name in NANO_SETS:
            card += f"  - {{split: Nano{name}, path: {part}/Nano{name}-*}}\n"
    for number, name in enumerate(NANO_SETS):
        rows = {
            "corpus": [(f"d{n}", f"w{n} w{number} text") for n in range(20)],
            # The last one is not judged.
            "queries": [(f"q{n}", f"w{n} question") for n in range(5)],
            "qrels": [(f"q{n}", f"d{n + more}") for n in range(4) for more in (0, 1)],
        }
        for part, columns in configurations.items():
            named = [dict(zip(columns, row, strict=True)) for row in rows[part]]
            _write_parquet(repository / f"{part}/Nano{name}-00000-of-00001.parquet", named)
    (repository / "README.md").write_text(card + "---\n")
