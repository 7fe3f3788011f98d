"""Run settings, read and resolved once; the run folder and the starting point of a run."""

from toolkit.run.folder import RunFolder
from toolkit.run.load import load_run, run_presets
from toolkit.run.settings import RunSettings

__all__ = ["RunFolder", "RunSettings", "load_run", "run_presets"]
