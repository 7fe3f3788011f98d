"""What pyproject.toml says: dependencies that the source imports, and a wheel with what its users need."""

import re
import sys
import tomllib

from tests.support.sources import ROOT, imports, modules

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMPORTED_AS = {
    "protobuf": "google",
    "pytrec-eval-terrier": "pytrec_eval",
    "scikit-learn": "sklearn",
    "sentence-transformers": "sentence_transformers",
    "tomli-w": "tomli_w",
}
WITHOUT_IMPORT = {
    "accelerate": "transformers' Trainer does not start without it",
    "jinja2": "pandas' Styler does not start without it",
    "tensorboard": "torch.utils.tensorboard writes through it",
}
INSTALLED_WITH = {"awkward": "gigatoken", "fsspec": "huggingface_hub", "regex": "tiktoken"}
"""Imported, and installed by a dependency that returns or takes its objects."""
TEST_HELPERS = {"contracts", "corpora", "distributed", "models", "tolerances"}
"""What authors of objectives need; the helpers of our own tests are in tests/support."""


def _names(requirements: list[str]) -> set[str]:
    names = {re.split(r"[<>=!~\[ ]", requirement)[0] for requirement in requirements}
    return {IMPORTED_AS.get(name, name) for name in names}


def _imported() -> set[str]:
    tops = {found.name.split(".")[0] for module in modules() for found in imports(module)}
    return tops - set(sys.stdlib_module_names) - {"toolkit", "tokenization", "launchers"}


def test_every_dependency_is_imported() -> None:
    dependencies = _names(PYPROJECT["project"]["dependencies"])
    assert dependencies - _imported() - set(WITHOUT_IMPORT) == set()
    assert set(WITHOUT_IMPORT) <= dependencies


def test_every_import_is_a_dependency() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    used = ("cluster", "dedup", "fast", "wandb")
    known = _names([*PYPROJECT["project"]["dependencies"], *(name for extra in used for name in extras[extra])])
    assert _imported() - known - set(INSTALLED_WITH) == set()


def test_the_wheel_ships_what_users_need() -> None:
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["toolkit", "tokenization"]
    assert all((ROOT / source).is_dir() for source in wheel["force-include"])
    helpers = {path.stem for path in (ROOT / "toolkit" / "testing").glob("*.py")} - {"__init__"}
    assert helpers == TEST_HELPERS
