"""Stages of the quickstart, one program after the other.

preprocess -> train, CLM then MLM, on two ranks -> convert to both Hugging Face forms -> a grid of the encoder and its
random twins -> report, with an introduction. With a comparison, a run without CLM is trained as well. None of it needs
a network. Each program keeps what it has finished, so that the job, started again, resumes where it stopped.
"""

import json
import shutil
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from toolkit.conversion import ExportDtype, ExportForm, to_hf
from toolkit.core.console import console
from toolkit.core.files import atomic_write
from toolkit.engine.gpus import visible_gpus
from toolkit.experiments.grid.declaration import Grid
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.program import run_grid
from toolkit.experiments.report import write_report
from toolkit.experiments.report.output_folder import PAGE
from toolkit.launching.train import train_run
from toolkit.preprocess.bundled import QUICKSTART_DATA, prepare_bundled_corpus
from toolkit.quickstart.introduction import Findings
from toolkit.quickstart.steps import StepChoice, measure_choice
from toolkit.run import RunFolder
from toolkit.run.data import open_run_data
from toolkit.run.load import declare_run, load_run

_PRESET, _DS_CONFIG, _RANKS = "quickstart", "zero2", 2
_COMPARISON, _COMPARISON_SCHEDULE = "mlm-only", 'schedule=[{objective = "mlm", fraction = 1.0}]'


class Job:
    """The quickstart's stages in one folder."""

    def __init__(self, folder: Path, comparison: str) -> None:
        self._folder, self._screen, self._number = folder, console(), 0
        self._scores = GridFolder(folder / "finetune")
        self._runs = [RunFolder(folder)]
        if comparison == _COMPARISON or RunFolder(folder / _COMPARISON).settings_file.exists():
            self._runs.append(RunFolder(folder / _COMPARISON))

    def run(self) -> int:
        """Run all stages, up to the first that does not finish; return its exit code, or 0."""
        self._screen.print(f"From text to a fine-tuned encoder in {self._folder}, without a network.")
        with self._stage("Prepare: Wikipedia text to a corpus"):
            choice = self._prepare()
        if choice.reason:
            self._screen.print(f"     {choice.reason}")
        titles = (f"Pretrain: {choice.steps:,} steps, CLM then MLM", f"Compare: {choice.steps:,} steps of MLM alone")
        for run, title in zip(self._runs, titles, strict=False):
            with self._stage(title):
                code = self._train(run, choice)
            if code or not run.checkpoint(choice.steps).is_dir():
                # The ranks have printed why.
                return code
        with self._stage("Convert: to Hugging Face, as encoder and as decoder"):
            difference = self._convert()
        with self._stage("Fine-tune: the encoder and its random twins, on labelled sentences"):
            code = run_grid(self._grid())
        if code:
            return code
        with self._stage("Report"):
            found = self._report(choice, difference)
        for line in ("", *found, f"Open {self._folder / PAGE} in a browser."):
            self._screen.print(line)
        return 0

    @contextmanager
    def _stage(self, title: str) -> Iterator[None]:
        self._number += 1
        self._screen.print(f"{self._number}/{4 + len(self._runs)}  {title}", style="bold")
        started = time.monotonic()
        yield
        self._screen.print(f"     took {time.monotonic() - started:.1f} s")

    def _prepare(self) -> StepChoice:
        """Prepare both corpora and choose the number of steps, measured only once: a restarted job keeps it."""
        run, kept = declare_run(_PRESET, self._places(self._folder)), self._folder / "steps.json"
        prepare_bundled_corpus(run.settings.data)
        if not kept.exists():
            choice = measure_choice(open_run_data(run).run.settings, ranks=_num_ranks())
            atomic_write(kept, json.dumps(asdict(choice)) + "\n")
        return StepChoice(**json.loads(kept.read_text(encoding="utf-8")))

    def _train(self, run: RunFolder, choice: StepChoice) -> int:
        overrides = [*self._places(run.path), *choice.overrides(load_run(_PRESET))]
        if run is not self._runs[0]:
            overrides.append(_COMPARISON_SCHEDULE)
        return train_run(_PRESET, overrides, ds_config=_DS_CONFIG, num_procs=_num_ranks())

    def _convert(self) -> float:
        """Export both forms over earlier ones; return the largest difference of their logits from the checkpoint's."""
        differences = list[float]()
        for name, form in (("hf-encoder", ExportForm.BIDIRECTIONAL), ("hf-decoder", ExportForm.CAUSAL)):
            shutil.rmtree(self._folder / name, ignore_errors=True)
            found = to_hf(self._folder, self._folder / name, form=form, dtype=ExportDtype.FP32)
            differences.append(found.max_difference)
        return max(differences)

    def _grid(self) -> Grid:
        raw = tomllib.loads((QUICKSTART_DATA / "grid.toml").read_text(encoding="utf-8"))
        raw["grid"]["dir"] = str(self._scores.path)
        raw["model"][0]["path"] = str(self._folder / raw["model"][0]["path"])
        for split in ("train", "validation", "test"):
            raw["task"][0][split] = str(QUICKSTART_DATA / raw["task"][0][split])
        return Grid.model_validate(raw)

    def _report(self, choice: StepChoice, difference: float) -> list[str]:
        scores = self._scores.read_scores()
        # Where a standalone fine-tuning run would write it.
        shutil.copyfile(self._scores.place(scores[0].cell).result_file, self._scores.path / "result.json")
        findings = Findings(self._runs, scores, steps_reason=choice.reason, max_difference=difference)
        folders = [*(run.path for run in self._runs), self._scores.path]
        write_report(folders, output=self._folder, introduction=findings.introduction())
        return findings.summary()

    def _places(self, run_folder: Path) -> list[str]:
        """Preset overrides that put everything below the quickstart's folder."""
        corpus = self._folder / "corpus"
        places = {"run.dir": run_folder, "data.train": corpus, "data.validation": corpus / "validation"}
        return [f"{key}={json.dumps(str(path))}" for key, path in places.items()]


def _num_ranks() -> int:
    return min(_RANKS, len(visible_gpus())) or _RANKS
