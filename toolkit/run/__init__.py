"""The settings of a run: the pieces that the packages below declare, composed, and the rules across pieces."""

from toolkit.run.corpora import with_corpora
from toolkit.run.load import load_run, run_presets
from toolkit.run.settings import RunSettings

__all__ = ["RunSettings", "load_run", "run_presets", "with_corpora"]
