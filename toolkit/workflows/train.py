"""`toolkit train` from settings to ranks: a run is resolved, checked and written to its folder before ranks start."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.run import RunSettings, load_run, run_presets
from toolkit.run.forecast import forecast
from toolkit.run.load import to_toml
from toolkit.run.resolve import resolve_run
from toolkit.workflows.bundled import prepare_if_named
from toolkit.workflows.launch import launch_ranks, num_devices


def train_run(source: str, overrides: Sequence[str], *, ds_config: str | None, num_procs: int | None) -> int:
    """Resolve a run, start it, and return its exit code.

    Args:
        source: run file or preset.
        overrides: `a.b=value`.
        ds_config: a DeepSpeed JSON or the name of a shipped one; None: chosen.
        num_procs: ranks on this machine; None: one per GPU, else one.

    Raises:
        UserError: the run cannot start.
    """
    settings = load_run(source, overrides)
    prepare_if_named(settings)
    ranks = num_procs or num_devices()
    run = resolve_run(settings, ds_config=ds_config, num_ranks=ranks)
    for choice in run.choices:
        print(choice, flush=True)
    with run.folder.reserved():
        with run.folder.locked():
            run.write()
        return launch_ranks(run.folder.path, num_procs=ranks)


def show_run(source: str, overrides: Sequence[str], *, ds_config: str | None, num_procs: int | None) -> None:
    """Print the resolved settings as a run file, and below them what follows from them; nothing is started or written.

    A preset may be shown before its corpora and first weights are there.

    Args: as `train_run`.

    Raises:
        UserError: the run could not start.
    """
    settings = load_run(source, overrides)
    missing = _missing(settings) if source in run_presets() else []
    if missing:
        print(to_toml(settings))
        lines = [*forecast(settings, None), *(f"{key} ({path}) does not exist yet" for key, path in missing)]
        sizes = "" if settings.model.vocab_size else ", parameters, FLOPs and disk (set model.vocab_size to see them)"
        lines.append(f"what depends on that is left out here: epochs of the corpus, checks against it{sizes}")
    else:
        run = resolve_run(settings, ds_config=ds_config, num_ranks=num_procs or num_devices())
        print(to_toml(run.settings))
        lines = [*forecast(run.settings, run.data), *run.data.describe().splitlines()]
        lines += [run.start.describe(run.settings), run.plan.describe(), *run.choices]
    for line in lines:
        print(f"# {line}")


def _missing(settings: RunSettings) -> list[tuple[str, str]]:
    """Folders that the run reads and that do not exist, each with the setting that names it."""
    data = settings.data
    named = [("data.train", data.train)] if isinstance(data.train, str) else []
    if not isinstance(data.train, str):
        named = [(f"data.train.{number}.path", entry.path) for number, entry in enumerate(data.train)]
    if data.validation is not None:
        named.append(("data.validation", data.validation))
    if settings.init is not None:
        named.append(("init.from", settings.init.source))
    return [(key, path) for key, path in named if not Path(path).exists()]
