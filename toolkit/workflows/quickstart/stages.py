"""Stages of the quickstart: inputs, outputs and program of each."""

import dataclasses
import json
import shutil
import tomllib
from contextlib import suppress
from pathlib import Path

from toolkit.core.errors import SettingsError, UserError
from toolkit.core.files import atomic_write
from toolkit.engine.gpus import visible_gpus
from toolkit.execution.stages import Job, StageRecord, Stages, hash_of
from toolkit.run import RunFolder
from toolkit.run.comparison import check_same_run
from toolkit.run.continuation import Continuation
from toolkit.run.data import RunData, open_run_data
from toolkit.run.identity import snapshot
from toolkit.run.load import declare_run, read_without_objectives
from toolkit.workflows.quickstart.finetuning import FinetuningRun, finetune_side_by_side
from toolkit.workflows.quickstart.steps import StepChoice, measure_choice
from toolkit.workflows.train import QUICKSTART_DATA, prepare_bundled_corpus, train_run

_PRESET, _DS_CONFIG = "quickstart", "zero2"
_RANKS = 2
_TWIN_SEEDS = (0, 1, 2)
_LABELS = QUICKSTART_DATA / "entity"
_MLM_ONLY, _MLM_ONLY_SCHEDULE = "mlm-only", 'schedule=[{objective = "mlm", fraction = 1.0}]'


class PretrainingEnded(Exception):
    """Pretraining did not reach its last step; the ranks have printed why."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class Quickstart:
    """The stages, in order, over one folder; `comparison` is trained and shown as well."""

    def __init__(self, folder: Path, comparison: str) -> None:
        # A comparison that was trained earlier stays in the report.
        twin = Stages(folder).get(_MLM_ONLY)
        self._compare = comparison == _MLM_ONLY or (twin is not None and twin.files is not None)
        self._changes = list[str]()
        self._folder, self._job = folder, Job(folder, num_stages=6 if self._compare else 5)

    def run(self) -> None:
        """Run the stages that are not finished, and write the report; PretrainingEnded where a run has ended early."""
        self._job.screen.print(f"From text to a fine-tuned encoder in {self._folder}, without a network.")
        self._prepare()
        self._pretrain("pretrain", self._folder, [])
        if self._compare:
            self._pretrain(_MLM_ONLY, self._folder / _MLM_ONLY, [_MLM_ONLY_SCHEDULE])
        self._convert()
        self._finetune()
        self._report()

    def _prepare(self) -> None:
        folder, run = self._folder / "corpus", declare_run(_PRESET, self._overrides(self._folder))
        files = [*QUICKSTART_DATA.glob("*.parquet"), *QUICKSTART_DATA.glob("tokenizer/*")]
        key = hash_of(*sorted(files))
        before = self._job.stages.get("prepare")
        if before is not None and before.key != key:
            raise self._is_of_another("was made from another version of the bundled text.")

        def work() -> dict[str, float]:
            if before is not None and before.files is not None:
                # Finished once and changed since; the same text gives the same bytes again.
                shutil.rmtree(folder, ignore_errors=True)
            prepare_bundled_corpus(run.settings.data)
            data = open_run_data(run)
            # A run that has begun goes on, whatever another measurement would say.
            return self._begun(before) or measure_choice(data.run.settings, ranks=_num_ranks()).facts

        self._job.stage("prepare", "Prepare: Wikipedia text to a corpus", key=key, outputs=[folder], work=work)
        self._choice = StepChoice.of(self._job.stages["prepare"].facts, run.settings)
        self._changes = self._choice.overrides(run.settings)
        if self._choice.reason:
            self._job.screen.print(f"     {self._choice.reason}")

    def _begun(self, before: StageRecord | None) -> dict[str, float]:
        """The number of steps that this folder's run has, with what decided it; empty if there is no run."""
        if before is not None and before.facts:
            return before.facts
        with suppress(UserError):
            steps = read_without_objectives(RunFolder(self._folder).settings_file).train.steps
            return {} if steps is None else {"steps": steps}
        return {}

    def _pretrain(self, name: str, folder: Path, changes: list[str]) -> None:
        overrides = [*self._overrides(folder), *changes]
        data = open_run_data(declare_run(_PRESET, overrides))
        run = RunFolder(folder)
        newest, _ = run.newest_checkpoint()
        if newest is not None:
            try:
                check_same_run(newest.manifest.settings, Continuation(newest.manifest).keep_choices(data.run).settings)
            except SettingsError as error:
                changed = [line for line in str(error).splitlines() if line.startswith("  ")]
                raise self._is_of_another("\n".join(["holds a run with other settings:", *changed])) from None
        last, ranks = run.checkpoint(data.run.plan.schedule.total_steps), _num_ranks()

        def work() -> None:
            code = train_run(_PRESET, overrides, ds_config=_DS_CONFIG, num_procs=ranks)
            if code or not last.is_dir():
                raise PretrainingEnded(code)

        self._job.stage(
            name,
            _phases(data),
            key=hash_of(snapshot(data.run.settings)),
            outputs=[last, run.metrics_file, run.settings_file],
            work=work,
        )

    def _convert(self) -> None:
        from toolkit.conversion import ExportDtype, ExportForm, to_hf

        forms = {"hf-encoder": ExportForm.BIDIRECTIONAL, "hf-decoder": ExportForm.CAUSAL}
        outputs = {self._folder / name: form for name, form in forms.items()}

        def work() -> dict[str, float]:
            differences = []
            for out, form in outputs.items():
                shutil.rmtree(out, ignore_errors=True)
                differences.append(to_hf(self._folder, out, form=form, dtype=ExportDtype.FP32).max_difference)
            return {"max_difference": max(differences)}

        newest, _ = RunFolder(self._folder).newest_checkpoint()
        assert newest is not None
        key = hash_of(newest.path / "manifest.json")
        title = "Convert: to Hugging Face, as encoder and as decoder"
        self._job.stage("convert", title, key=key, outputs=list(outputs), work=work)

    def _finetune(self) -> None:
        encoder, root, files = self._folder / "hf-encoder", self._folder / "finetune", _labelled()
        chosen = tomllib.loads((QUICKSTART_DATA / "finetune.toml").read_text(encoding="utf-8"))
        places = [(root, "pretrained", 0), *((root / f"random-{seed}", "random", seed) for seed in _TWIN_SEEDS)]
        runs = [
            FinetuningRun(encoder, files, place, chosen[kind] | {"seed": seed}, kind) for place, kind, seed in places
        ]
        names = ("result.json", "predictions.jsonl", "model")
        self._job.stage(
            "finetune",
            f"Fine-tune: the encoder, on labelled sentences, and {len(_TWIN_SEEDS)} randomly initialised twins",
            key=hash_of(
                encoder / "config.json", encoder / "model.safetensors", *files.values(), *(run.settings for run in runs)
            ),
            outputs=[run.output / each for run in runs for each in names],
            work=lambda: finetune_side_by_side(runs, logs=root / "logs"),
        )

    def _report(self) -> None:
        from toolkit.workflows.quickstart.facts import gather
        from toolkit.workflows.quickstart.page import render, summary

        path, root = self._folder / "report.html", self._folder / "finetune"
        with self._job.always("report", "Report"):
            facts = gather(
                self._folder,
                open_run_data(declare_run(_PRESET, self._overrides(self._folder))),
                labelled=_labelled(),
                results=[root, *(root / f"random-{seed}" for seed in _TWIN_SEEDS)],
                mlm_only=self._folder / _MLM_ONLY if self._compare else None,
                max_logit_difference=self._job.stages["convert"].facts["max_difference"],
            )
        facts = dataclasses.replace(facts, stages=self._job.records(), steps_reason=self._choice.reason)
        atomic_write(path, render(facts))
        screen = self._job.screen
        screen.print()
        screen.print(summary(facts))
        if not self._job.num_made:
            screen.print("All stages were finished before; the report was rewritten.")
        screen.print(f"Open {path} in a browser.")

    def _overrides(self, run_folder: Path) -> list[str]:
        """Overrides of the preset that put everything into this folder, with as many steps as are chosen."""
        corpus = self._folder / "corpus"
        places = {"run.dir": run_folder, "data.train": corpus, "data.validation": corpus / "validation"}
        return [*(f"{key}={json.dumps(str(path))}" for key, path in places.items()), *self._changes]

    def _is_of_another(self, what: str) -> SettingsError:
        return SettingsError(
            f"{self._folder} {what}\nThe quickstart cannot continue it: remove or rename {self._folder} to start again."
        )


def _num_ranks() -> int:
    return min(_RANKS, len(visible_gpus())) or _RANKS


def _labelled() -> dict[str, Path]:
    return {split: _LABELS / f"{split}.tsv" for split in ("train", "validation", "test")}


def _phases(data: RunData) -> str:
    steps = [(f"{phase.stop - phase.start:,}", phase.objective.upper()) for phase in data.run.plan.schedule.phases]
    if len(steps) == 1:
        return "Compare: {} steps of {} alone".format(*steps[0])
    return "Pretrain: {} steps of {}".format(*steps[0]) + "".join(
        f", then {count} of {name}" for count, name in steps[1:]
    )
