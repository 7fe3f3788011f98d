"""Where the error cases happen: a folder with one of everything, whole and broken, and what may be wrong around it."""

import io
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from unittest.mock import patch

import pytest
import tomli_w
import torch

from tests.support.checkpoints import model_states, write_checkpoint
from tests.support.finished_grids import row as grid_row
from tests.support.finished_grids import write_finished_grid
from tests.support.hf_decoders import edit_json, edit_tensors, save_decoder, save_tokenizer
from tests.support.hub_server import HubServer
from tests.support.runs import write_run
from tests.support.text import sample_documents, tiny_tokenizer
from tokenization.hub import with_retries
from toolkit.cli.main import main
from toolkit.conversion.weights import EMBEDDING, HEAD
from toolkit.core.errors import UserError
from toolkit.model import Encoder, model_settings
from toolkit.model.initialization import initialize_
from toolkit.preprocess.program import preprocess
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.run import load_run
from toolkit.run.identity import snapshot
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.testing.models import MODEL_OPTIONS

__all__ = ["Case", "Place", "call", "call_apart"]

_NOBODY = "http://127.0.0.1:9"
_RESOLVED = [
    "objectives.clm.kind=clm",
    "objectives.mlm={kind='mlm',mask_ratio=0.4,mask_fraction=1.0,random_fraction=0.0,keep_fraction=0.0}",
]
"""What a run writes of the objectives that the run file leaves out."""


@dataclass(frozen=True)
class Case:
    """A command line that is refused.

    Attributes:
        words: after `toolkit`.
        found: pieces of the message that say what was asked and found.
        remedy: a piece of the message that says what to do.
        under: what is wrong around it: "" or one of `_CIRCUMSTANCES`.
    """

    words: tuple[str, ...]
    found: tuple[str, ...]
    remedy: str
    under: str = ""

    @property
    def name(self) -> str:
        """For test reports."""
        under = f" [{self.under}]" if self.under else ""
        return " ".join(self.words).replace("{", "").replace("}", "") + under


# By name what follows [study], and blocks of models.
_STUDIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "study": ("", ("axes.schedule = ['clm 6']",)),
    "study_of_nothing": ("", ()),
    "study_of_twins": ("", ("axes.schedule = ['clm 6']",) * 3),
    "study_of_equals": ("", ("axes.schedule = ['clm 6', 'clm 3 + clm 3']",)),
    "study_of_savings": ("", ("axes.checkpoint.every = [1, 2]",)),
    "study_of_typos": ("", ("axes.lrs.peak = [1.0]",)),
    "study_of_words": ("", ("axes.schedule = ['clm then mlm']",)),
    "study_of_orphans": ("", ("axes.schedule = ['clm 6']", "from = 'run-clm-8'\naxes.schedule = ['mlm 2']")),
    "study_of_mistakes": ("", ("axes.schedule = ['clm 6']\naxes.lr.peak = [1e-3, -1.0, -2.0]",)),
    "study_of_lengths": ("[set.train]\nsteps = 7", ("axes.schedule = ['clm 6']",)),
    "study_by_template": ("names = '{share}'", ("axes.schedule = ['clm 6']",)),
    "study_of_nobody": ("adopt = ['nowhere']", ("axes.schedule = ['clm 6']",)),
}


class Place:
    """A folder with one of everything, whole and broken; `names` maps what cases call it to its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, str] = {"here": str(folder), "long": "x" * 300}
        self._lay_down_runs()
        self._lay_down_corpora()
        self._lay_down_text()
        self._lay_down_unfinished()
        self._lay_down_tables()
        self._lay_down_grids()
        self._lay_down_studies()
        self._lay_down_collections()
        self._lay_down_finished_grids()
        self._lay_down_models()
        self._lay_down_decoders()
        self._lay_down_finetuned()
        self._lay_down_hub()
        self._lay_down_plugin()

    def __enter__(self) -> "Place":
        self._server = HubServer(self.folder / "hub")
        self._server.__enter__()
        for name in ("models/org/gated", "datasets/org/gated"):
            self._server.lock(name, "hf_theirs")
        self.names["hub"] = self._server.endpoint
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, traceback)

    def fill(self, words: str) -> str:
        """Words with every {name} replaced by its path."""
        for name, path in self.names.items():
            words = words.replace(f"{{{name}}}", path)
        return words

    def _add(self, name: str, path: Path) -> Path:
        self.names[name] = str(path)
        return path

    def _write(self, name: str, file: str, content: str | bytes) -> Path:
        return self._add(name, self._file(file, content))

    def _file(self, file: str, content: str | bytes) -> Path:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def _lay_down_runs(self) -> None:
        run = self._add("run", write_run(self.folder)).read_text()
        self._add("empty", self.folder / "empty").mkdir()
        self._add("empty_link", self.folder / "empty-link").symlink_to("empty")
        self._write("broken_toml", "broken.toml", "[run\n")
        self._write("open_toml", "open.toml", "[run]\nseeds = [1,\n")
        self._write("twice_toml", "twice.toml", run + "\n[run]\n")
        self._write("latin_toml", "latin.toml", b"# \xe9\n")
        head, data, rest = run[: run.index("[data]")], run[run.index("[data]") :], run[run.index("[[schedule]]") :]
        self._write("no_data", "no_data.toml", head + rest)
        self._write("no_schedule", "no_schedule.toml", head + data[: data.index("[[schedule]]")])
        self._write("no_model", "no_model.toml", run[: run.index("[model]")] + data)
        validation = f'validation = "{self.folder / "validation"}"\n'
        self._write("no_validation", "no_validation.toml", run.replace(validation, ""))
        full = self._add("full", self.folder / "full")
        full.mkdir()
        (full / "run.toml").symlink_to("/dev/full")
        for name, content in _DS_FILES.items():
            self._write(name, f"{name}.json", json.dumps(content))
        self._write("ds_deep", "ds_deep.json", "[" * 100_000)

    def _lay_down_corpora(self) -> None:
        documents = random_documents(160, vocabulary_size=97, max_length=90, first_id=3, seed=1)
        self._add("corpus", self.folder / "corpus")
        few = random_documents(9, vocabulary_size=50, max_length=90)
        other = self._add("other", self.folder / "other")
        write_token_corpus(other, few, vocabulary_size=50, eos=0, pad=1, mask=2)
        write_token_corpus(self._add("maskless", self.folder / "maskless"), documents, vocabulary_size=97, eos=0, pad=1)
        pair = self._add("pair", self.folder / "pairs")
        pair.mkdir()
        (pair / "damaged.bin").write_bytes(b"1234")
        (pair / "damaged.idx").write_bytes(b"1234")
        (pair / "half.bin").write_bytes(b"1234")

    def _lay_down_text(self) -> None:
        tokenizer = self._add("tokenizer", tiny_tokenizer(self.folder / "tokenizer"))
        lines = "".join(json.dumps({"text": text}) + "\n" for text in sample_documents(40))
        text = self._write("text", "text.jsonl", lines)
        self._write("bad_gzip", "bad.jsonl.gz", "this is no gzip")
        self._write("broken_csv", "broken.csv", 'text\n"never closed\n')
        self._write("swallowed_csv", "swallowed.csv", 'id,text\n1,one\n2,"a stray mark\n3,three\n4,"four"\n')
        self._write("empty_gzip", "empty.jsonl.gz", "")
        self._write("bad_parquet", "bad.parquet", "this is no Parquet file")
        self._write("no_rows", "no_rows.jsonl", "")
        self._write("one_object", "one.json", '{\n "text": "a"\n}\n')
        self._write("broken_array", "array.json", '[{"text": "a"}, {"text": }]')
        self._write("document", "documents/a.docx", "x")
        self._add("documents", self.folder / "documents")
        self._write("broken_tokenizer", "broken_tokenizer.json", '{"model": ')
        self._write("nameless_tokenizer", "nameless/tokenizer.json", (tokenizer / "tokenizer.json").read_bytes())
        self._write("spec", "spec.toml", 'scheme = "llama9"\n')
        prepared = self._add("prepared", self.folder / "prepared")
        preprocess([str(text)], prepared, settings=PreprocessSettings(tokenizer=str(tokenizer)))
        unended = PreprocessSettings(tokenizer=str(tokenizer), add_eod=False)
        preprocess([str(text)], self._add("unended", self.folder / "unended"), settings=unended)
        for name, damage in _DAMAGE.items():
            damage(shutil.copytree(prepared, self._add(name, self.folder / name)))

    def _lay_down_unfinished(self) -> None:
        """Corpora that were interrupted: here by a source with bad rows behind one with good ones."""
        rows = '{"text": "The old miller counts."}\n' * 9
        sources = [str(self._file("begun/a.jsonl", rows)), str(self._file("begun/b.jsonl", rows + "no JSON\n" * 9))]
        output = self._add("begun", self.folder / "begun-corpus")
        settings = PreprocessSettings(tokenizer=self.names["tokenizer"], shard_tokens=20)
        with suppress(UserError):
            preprocess(sources, output, settings=settings)
        old = self._add("begun_by_0_1", Path(shutil.copytree(output, self.folder / "begun-by-0.1")))
        (old / "unfinished" / "begun.json").write_text('{"key": "9f86d081", "reference_only": false}')

    def _lay_down_tables(self) -> None:
        self._write("table", "table.tsv", "text\tlabel\n" + "The miller counts.\tyes\nA fox paints.\tno\n" * 4)
        for name, (file, content) in _TABLES.items():
            self._write(name, f"tables/{file}", content)

    def _lay_down_grids(self) -> None:
        task = {"name": "t", "kind": "sc", **dict.fromkeys(("train", "validation", "test"), self.names["table"])}
        model = {"name": "m", "path": str(self.folder / "checkpoint")}
        for name, (grid, models, tasks) in _GRIDS.items():
            declared = {
                "grid": {"dir": "grid-out", **grid},
                "model": [{**model, **more} for more in models],
                "task": [more if "dataset" in more else {**task, **more} for more in tasks],
            }
            self._write(name, f"grids/{name}.toml", tomli_w.dumps(declared).replace("{here}", str(self.folder)))

    def _lay_down_studies(self) -> None:
        for name, (head, blocks) in _STUDIES.items():
            study = f'[study]\nbase = "{self.names["run"]}"\ndir = "{self.folder}/study"\n{head}\n'
            self._write(name, f"studies/{name}.toml", study + "\n".join(f"[[models]]\n{block}" for block in blocks))

    def _lay_down_collections(self) -> None:
        rows = [{"_id": str(number), "text": text} for number, text in enumerate(sample_documents(4))]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        for name in ("collection", "twice_collection"):
            self._write(f"{name}_corpus", f"{name}/corpus.jsonl", lines * (1 + (name != "collection")))
            self._file(f"{name}/queries.jsonl", lines)
            self._file(f"{name}/qrels/train.tsv", "0\t0\t1\n1\t1\t1\n")
            self._add(name, self.folder / name)
        for name, content in _QRELS.items():
            self._write(name, f"collection/qrels/{name}.tsv", content)

    def _lay_down_finished_grids(self) -> None:
        """Grids of two cells with `grid.toml`; each but three is damaged in one file."""
        one, two = grid_row("a", "t", 0, 0.5), grid_row("a", "t", 1, 0.5)
        line = json.dumps(one)
        damage = {
            "no_cells": ("results.jsonl", ""),
            "broken_row": ("results.jsonl", f"{line}\n{{\n"),
            "number_row": ("results.jsonl", "1\n"),
            "seedless_row": ("results.jsonl", json.dumps({key: one[key] for key in one if key != "seed"})),
            "texted_row": ("results.jsonl", json.dumps({**one, "test": {"accuracy": "0.5"}})),
            "nan_row": ("results.jsonl", json.dumps({**one, "test": {"accuracy": float("nan")}})),
            "other_metric": ("results.jsonl", json.dumps({**one, "metric": "f1"})),
            "twice_row": ("results.jsonl", f"{line}\n{line}\n"),
            "broken_selected": ("selected.json", '{"a": 1}'),
            "other_selected": ("selected.json", '{"a": {"t": {"learning_rate": 0.5}}}'),
            "broken_toml": ("grid.toml", "[["),
        }
        for name in ("whole", "again", "unselected", *damage):
            folder = self._add(f"grid_{name}", write_finished_grid(self.folder / "grids" / name, [one, two]))
            if name in damage:
                file, content = damage[name]
                (folder / file).write_text(content)
        (self.folder / "grids/unselected/selected.json").unlink()
        result = json.dumps({"task_name": "T", "scores": {"test": [{"main_score": 0.5}]}})
        for name, model, content in (("other", "b", result), ("broken", "a", "{}"), ("twice", "a", result)):
            file = self._file(f"scores_{name}/{model}/one/T.json", content)
            self._add(f"scores_{name}", file.parents[2])
        self._file("scores_twice/a/two/T.json", result)
        self._add("grid_b", write_finished_grid(self.folder / "grids/b", [grid_row("b", "t", 0, 0.5)]))
        self._file("scores_subsets/a/one/T.json", result)
        self._add("scores_subsets", self._file("scores_subsets/b/one/T.json", result.replace("test", "dev")).parents[2])
        self._file("scores_rows/euroeval.jsonl", '\n{"model": "a", "dataset": "d", "results": {"total": {}}}')
        self._add("scores_rows", self.folder / "scores_rows")
        self._add("grid_stepless", self._file("stepless/metrics.jsonl", "").parent)
        self._add("tokenizer_only", self._file("a-model/config.json", "{}").parent)

    def _lay_down_models(self) -> None:
        settings = model_settings("test", vocab_size=384)
        encoder = Encoder(settings)
        initialize_(encoder, seed=0)
        tokenizer = self.folder / "tokenizer"
        for name in ("checkpoint", "damaged_checkpoint"):
            path = write_checkpoint(
                self.folder / name, 20, states=model_states(encoder), tokenizer_folder=tokenizer, model=settings
            )
            self._add(name, path)
        _flip_last_byte(next(path.glob("weights-*")))
        for family in ("modernbert", "ultrabert"):
            other = model_settings("test", vocab_size=384, **MODEL_OPTIONS[family])
            place, states = self.folder / family, model_states(Encoder(other))
            path = write_checkpoint(place, 20, states=states, tokenizer_folder=tokenizer, model=other)
            self._add(family, path)
        self._write("no_manifest", "no_manifest/manifest.json", '{"step": 1}')
        self._add("no_manifest", self.folder / "no_manifest")
        started = load_run(self.names["run"], ["model.vocab_size=97", "lr.peak=2e-2", *_RESOLVED])
        for name, states in (("started", model_states(encoder)[:1]), ("damaged_run", model_states(encoder))):
            step = write_checkpoint(
                self._add(name, self.folder / name) / "checkpoints",
                10,
                states=states,
                tokenizer_folder=tokenizer,
                settings=snapshot(started),
            )
        _flip_last_byte(next(step.glob("weights-*")))

        run = Path(self.names["run"]).read_text().replace(f"{self.folder}/run", "runs/a")
        moved = self._file("moved/run.toml", run)
        shutil.copytree(self.folder / "started" / "checkpoints", self._add("moved", moved.parent) / "checkpoints")

    def _lay_down_decoders(self) -> None:
        whole = self._add("decoder", self.folder / "decoder")
        save_decoder("llama 3", whole)
        for name, change in _DECODERS.items():
            change(shutil.copytree(whole, self._add(name, self.folder / name)))

    def _lay_down_finetuned(self) -> None:
        """Output folders: of a run, without weights; with a `model/` of somebody else, and with a link to one."""
        notes = {"task": "sc", "settings": {}, "columns": ["text"]}
        self._add("tuned", self._file("tuned/model/finetuning.json", json.dumps(notes)).parents[1])
        self._file("tuned/result.json", "{}")
        foreign = self._file("foreign/model/config.json", "{}").parent
        self._add("foreign", foreign.parent)
        linked = self._add("linked", self.folder / "linked")
        linked.mkdir()
        (linked / "model").symlink_to(foreign)

    def _lay_down_hub(self) -> None:
        for name in ("models/org/gated", "datasets/org/gated", "datasets/org/pictures"):
            self._file(f"hub/{name}/README.md", "Nothing.\n")

    def _lay_down_plugin(self) -> None:
        self._file("plugins/breaking.py", "import no_such_module\n")
        info = "plugins/breaking-1.5.dist-info"
        self._file(f"{info}/METADATA", "Metadata-Version: 2.1\nName: breaking\nVersion: 1.5\n")
        self._file(f"{info}/entry_points.txt", "[toolkit.objectives]\nbreaking = breaking:Breaking\n")
        self._add("plugins", self.folder / "plugins")


_DS_FILES = {
    "ds_optimizer": {"optimizer": {"type": "Adam"}},
    "ds_batch": {"train_batch_size": 9},
    "ds_stage": {"zero_optimization": {"stage": 7}},
    "ds_block": {"zero_optimization": 2},
    "ds_list": [1],
    "ds_misspelt": {"zero_optimisation": {"stage": 2}},
    "ds_fp16": {"fp16": {"enabled": True}},
    "ds_unknown": {"zero_optimization": {"stage": 2, "nonsense": 3}},
}


def _squad(**question: object) -> str:
    """A file of SQuAD's format with one question."""
    asked = {"id": "q7", "question": "Who wrote it?", **question}
    return json.dumps({"data": [{"paragraphs": [{"context": "Ada wrote it.", "qas": [asked]}]}]})


_TABLES: dict[str, tuple[str, str | bytes]] = {
    "one_class": ("one.tsv", "text\tlabel\na\tyes\nb\tyes\n"),
    "ragged": ("ragged.tsv", "text\tlabel\na\tyes\tno\n"),
    "no_header": ("no_header.tsv", ""),
    "tagged": ("tagged.conll", "Ann B-PER\nsings O\n"),
    "one_column": ("one.conll", "Ann\nsings\n"),
    "ragged_tags": ("ragged.conll", "Ann B-PER\nsings VBZ O\n"),
    "wrong_tag": ("wrong.conll", "sings O\nAnn PER\nBo B-PER\n"),
    "mixed_tags": ("mixed.conll", "Ann S-PER\n\nBob U-PER\n"),
    "no_entities": ("outside.conll", "sings O\n"),
    "no_sentences": ("none.conll", "-DOCSTART- O\n\n# nothing\n"),
    "other_type": ("other.conll", "sings O\n\nChristmas B-MISC\n"),
    "no_examples": ("no_examples.tsv", "text\tlabel\n"),
    "twice_named": ("twice.tsv", "text\ttext\na\tb\n"),
    "latin": ("latin.tsv", b"text\tlabel\n\xff\tyes\n"),
    "bad_lines": ("bad.jsonl", '{"text": 1\n'),
    "lists": ("lists.jsonl", "[1]\n"),
    "nothing": ("nothing.jsonl", '{"text": null, "label": 1}\n'),
    "label_lists": ("label_lists.jsonl", '{"text": "a", "label": ["a"]}\n'),
    "no_labels": ("no_labels.jsonl", '{"text": "a", "label": []}\n'),
    "quantities": ("quantities.jsonl", '{"text": "a", "label": 1.5}\n'),
    "no_squad_data": ("no_data.json", '{"rows": []}'),
    "no_questions": ("no_questions.json", '{"data": []}'),
    "bad_offset": ("bad_offset.json", _squad(answers=[{"text": "Ada", "answer_start": 1}])),
    "two_minds": ("two_minds.json", _squad(answers=[{"text": "Ada", "answer_start": 0}], is_impossible=True)),
    "other_label": ("other.tsv", "text\tlabel\na\tmaybe\n"),
    "sheet": ("sheet.xlsx", "x"),
}

_GRIDS: dict[str, tuple[dict[str, object], list[dict[str, object]], list[dict[str, object]]]] = {
    "whole_grid": ({}, [{}], [{}]),
    "modelless_grid": ({}, [], [{}]),
    "twin_models": ({}, [{}, {}], [{}]),
    "typed_wrong": ({"learning_rates": ["1e-4"]}, [{}], [{}]),
    "misspelt_option": ({}, [{}], [{"batch_row": 4}]),
    "unknown_kind": ({}, [{}], [{"kind": "ner"}]),
    "lost_data": ({}, [{}], [{"train": "no.tsv"}]),
    "lost_model": ({}, [{"path": "no/such/model"}], [{}]),
    "steps_of_a_checkpoint": ({}, [{"steps": "all"}], [{}]),
    "steps_of_a_hub_model": ({}, [{"path": "org/model", "steps": [2]}], [{}]),
    "steps_in_words": ({}, [{"steps": "2 to 9"}], [{}]),
    "unkept_step": ({}, [{"path": "{here}/started", "steps": [10, 20]}], [{}]),
    "empty_range": ({}, [{"path": "{here}/started", "steps": "11..20:5"}], [{}]),
    "choiceless_set": ({}, [{}], [{"name": "t", "kind": "ir", "dataset": "nq"}]),
    "file_as_grid_folder": ({"dir": "/dev/null/grid"}, [{}], [{}]),
}

_QRELS = {
    "qrels": "query-id\tcorpus-id\tscore\n2\t2\t1\n",
    "no_judgements": "query-id\tcorpus-id\tscore\n",
    "unknown_query": "9\t2\t1\n",
    "spaced": "2 2 1\n",
    "nothing_relevant": "2\t2\t0\n",
}


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _recount(path: Path) -> None:
    path.write_text(path.read_text().replace('"documents": 40', '"documents": 41'))


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


_DAMAGE: dict[str, Callable[[Path], None]] = {
    "damaged_manifest": lambda folder: _recount(folder / "corpus.json"),
    "short_shard": lambda folder: _shorten(folder / "shard-00000.bin"),
    "damaged_shard": lambda folder: _flip_last_byte(folder / "shard-00000.bin"),
    "lost_shard": lambda folder: (folder / "shard-00000.idx").unlink(),
}


def _configure(folder: Path, **changes: object) -> None:
    edit_json(folder / "config.json", **changes)


_NORM = "model.norm.weight"
_DECODERS: dict[str, Callable[[Path], object]] = {
    "no_weights": lambda folder: (folder / "model.safetensors").unlink(),
    "headless": lambda folder: edit_tensors(folder, lambda held: held.pop(HEAD)),
    "adapter": lambda folder: (
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors"),
        edit_json(folder / "adapter_config.json", base_model_name_or_path="org/base"),
    ),
    "pickled": lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
    "cut_weights": lambda folder: _shorten(folder / "model.safetensors"),
    "experts": lambda folder: _configure(folder, num_local_experts=8),
    "gpt2": lambda folder: _configure(folder, model_type="gpt2"),
    "broken_config": lambda folder: (folder / "config.json").write_text("{"),
    "list_config": lambda folder: (folder / "config.json").write_text("[1]"),
    "no_norm": lambda folder: edit_tensors(folder, lambda held: held.pop(_NORM)),
    "wide_norm": lambda folder: edit_tensors(folder, lambda held: held.update({_NORM: torch.ones(65)})),
    "infinite_norm": lambda folder: edit_tensors(
        folder, lambda held: held.update({_NORM: torch.full((64,), torch.inf)})
    ),
    "tied": lambda folder: _configure(folder, tie_word_embeddings=True),
    "few_rows": lambda folder: (
        _configure(folder, vocab_size=300),
        edit_tensors(folder, lambda held: held.update({name: torch.ones(300, 64) for name in (EMBEDDING, HEAD)})),
    ),
    "no_tokenizer": lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
    "masked": lambda folder: save_tokenizer(folder, specials=("<s>", "</s>", "<mask>"), mask_token="<mask>"),
}


@contextmanager
def _hub(place: Place, *, endpoint: str, is_offline: bool = False) -> Iterator[None]:
    """The hub's client speaks with this hub, without a token, and does not wait before it asks again."""
    from huggingface_hub import constants

    environment = {"HF_ENDPOINT": endpoint, "HF_TOKEN_PATH": os.devnull}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment))
        os.environ.pop("HF_TOKEN", None)
        changes = {
            "ENDPOINT": endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
            "HF_HUB_OFFLINE": is_offline,
            "HF_HUB_CACHE": str(place.folder / "cache"),
            "HF_TOKEN_PATH": os.devnull,
        }
        stack.enter_context(patch.multiple(constants, **changes))
        # That of the toolkit, which is a default, and the client's own.
        stack.enter_context(patch.dict(with_retries.__kwdefaults__, sleep=lambda seconds: None))
        stack.enter_context(patch("time.sleep"))
        yield


@contextmanager
def _full_disk(place: Place) -> Iterator[None]:
    """No file may grow beyond 300 bytes: the system refuses it where it would say that the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def _plugin(place: Place) -> Iterator[None]:
    with patch.object(sys, "path", [place.names["plugins"], *sys.path]):
        yield


@contextmanager
def _without_ray(place: Place) -> Iterator[None]:
    # Not patch.dict, which would also forget all modules that are imported inside.
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "ray", None)
        yield


_CIRCUMSTANCES: dict[str, Callable[[Place], object]] = {
    "hub": lambda place: _hub(place, endpoint=place.names["hub"]),
    "offline": lambda place: _hub(place, endpoint=place.names["hub"], is_offline=True),
    "unreachable": lambda place: _hub(place, endpoint=_NOBODY),
    "full disk": _full_disk,
    "plugin": _plugin,
    "no ray": _without_ray,
    "no slurm": lambda place: patch.dict(os.environ, {"PATH": place.names["empty"]}),
    "dead cluster": lambda place: patch.dict(os.environ, {"RAY_ADDRESS": "127.0.0.1:9"}),
    "clusterless address": lambda place: patch.dict(os.environ, {"RAY_ADDRESS": "ray://127.0.0.1:9"}),
}


def call(case: Case, place: Place) -> tuple[object, str]:
    """Run a case's command line in the place: its exit code, and what it says on standard error."""
    err = io.StringIO()
    code: object = None
    words = ["toolkit", *map(place.fill, case.words)]
    with ExitStack() as stack:
        if case.under:
            stack.enter_context(_CIRCUMSTANCES[case.under](place))
        stack.enter_context(patch.object(sys, "argv", words))
        stack.enter_context(chdir(place.folder))
        stack.enter_context(redirect_stderr(err))
        stack.enter_context(redirect_stdout(io.StringIO()))
        try:
            main()
        except SystemExit as left:
            code = left.code
    return code, err.getvalue()


def call_apart(case: Case, place: Place) -> tuple[object, str]:
    """`call` in a process of its own, whose children's words are heard too."""
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.cli", *map(place.fill, case.words)],
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stderr
