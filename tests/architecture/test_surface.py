"""The public surface: the names the contract promises, and modules that all import."""

import importlib
import inspect

import pytest

from tests.support.sources import modules

_PROMISED = {
    "toolkit.data": ["Corpus"],
    "toolkit.objectives": ["AttentionKind", "Draws", "Objective", "Targets", "get", "register"],
    "toolkit.model": ["Encoder", "ModelSettings"],
    "toolkit.training": ["pretrain"],
    "toolkit.conversion": ["from_hf", "to_hf"],
    "tokenization": ["load"],
}


@pytest.mark.parametrize("package", _PROMISED)
def test_promised_names_are_there_and_described(package):
    module = importlib.import_module(package)
    for name in _PROMISED[package]:
        assert name in module.__all__, name
        assert inspect.getdoc(getattr(module, name)), name


def test_every_module_imports_and_has_what_it_exports():
    """Those that import on first use too."""
    # mypy passes over an import of ours that does not resolve, as over one of a package that is not installed.
    for module in modules():
        if module.path.startswith(("toolkit/", "tokenization/")) and not module.path.endswith("__main__.py"):
            loaded = importlib.import_module(module.name)
            assert [name for name in getattr(loaded, "__all__", ()) if not hasattr(loaded, name)] == [], module.path
