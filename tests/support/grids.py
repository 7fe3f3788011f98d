"""A small grid on disk: tiny encoders, and tiny data of all four families."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.hf_encoders import WORDS, save_encoder
from tests.support.retrieval import word_collection
from toolkit.experiments.grid import program
from toolkit.work.claims import Job, work_on

FAMILIES = ("sc", "tc", "qa", "ir")


def write_data(folder: Path) -> dict[str, str]:
    """Data of all families; by kind, the keys of its `[[task]]`."""
    if not folder.exists():
        folder.mkdir(parents=True)
        _write_files(folder)
    files = {
        kind: f"train = '{folder}/train.{end}'\nvalidation = '{folder}/dev.{end}'\ntest = '{folder}/test.{end}'"
        for kind, end in (("sc", "jsonl"), ("tc", "conll"), ("qa", "json"))
    }
    collection = "\n".join(f"{split} = '{folder}/words'" for split in ("train", "validation", "test"))
    return {**files, "ir": collection}


def _write_files(folder: Path) -> None:
    draw = random.Random(0)
    for split, count in (("train", 24), ("dev", 12), ("test", 12)):
        texts = [draw.choices(WORDS, k=draw.randint(3, 9)) for _ in range(count)]
        rows = [{"text": " ".join(words), "label": int(words[0] > words[1])} for words in texts]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        tagged = ("".join(f"{word}\t{_tag(word)}\n" for word in words) for words in texts)
        (folder / f"{split}.conll").write_text("\n".join(tagged))
        contexts = [(" ".join(words), words) for words in texts]
        asked = [squad_paragraph(text, words[0], [(words[1], len(words[0]) + 1)], key=text) for text, words in contexts]
        (folder / f"{split}.json").write_text(json.dumps({"data": [{"paragraphs": asked}]}))
    word_collection(folder / "words", num_documents=30, num_queries=24)


def _tag(word: str) -> str:
    return "B-PER" if int(word[1:]) < 10 else "O"


def squad_paragraph(context: str, question: str, answers: Iterable[tuple[str, int]], *, key: str) -> dict[str, object]:
    """A context with one question, in SQuAD's format; answers are texts and where they start."""
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"context": context, "qas": [{"id": key, "question": question, "answers": found}]}


def write_grid(
    folder: Path,
    *,
    kinds: Sequence[str] = FAMILIES,
    models: Sequence[str] = ("eurobert",),
    rates: Sequence[float] = (1e-3, 1e-2),
    seeds: Sequence[int] = (0, 1),
    steps: int = 2,
    output: str = "out",
    options: str = "",
) -> Path:
    """A grid file below a folder, with what it names; its results go to `output` there.

    Args:
        folder: of everything.
        kinds: a task of each, which has its name.
        models: kinds of tiny encoders, which are models' names.
        rates: learning rates.
        seeds: of all tasks.
        steps: of a cell; batches have 4 rows.
        output: name of the grid's folder.
        options: lines for `[grid]`.
    """
    data = write_data(folder / "data")
    text = f"[grid]\ndir = '{folder / output}'\nsteps = {steps}\nthreads = 1\n"
    text += f"learning_rates = {list(rates)}\nseeds = {list(seeds)}\n{options}\n"
    for model in models:
        if not (folder / model).exists():
            save_encoder(model, folder / model)
        text += f"[[model]]\nname = '{model}'\npath = '{folder / model}'\n"
    for kind in kinds:
        text += f"[[task]]\nname = '{kind}'\nkind = '{kind}'\nbatch_rows = 4\n{data[kind]}\n"
    path = folder / f"{output}.toml"
    path.write_text(text)
    return path


def run_cells_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the cells of a grid run in this process, not in workers; the list gets the number of cells of each grid."""
    numbers = []

    def inline(kind: object, job: Job, *, num_workers: object, logs: Path) -> AbstractContextManager[SimpleNamespace]:
        def run(look: Callable[[Sequence[str]], object]) -> None:
            work_on(job)
            look(())

        numbers.append(len(job.items))
        return nullcontext(SimpleNamespace(run=run))

    monkeypatch.setattr(program, "open_crew", inline)
    return numbers
