"""Imports point down: the table of layers, held over every import of the product."""

import ast
import re
import sys
from graphlib import TopologicalSorter

import pytest

from tests.support.apart import run_apart
from tests.support.sources import Import, Module, imports, modules

LAYERS = {
    "toolkit.core": 0,
    "tokenization": 0,
    "toolkit.model": 1,
    "toolkit.objectives": 1,
    "toolkit.data": 1,
    "toolkit.checkpoint": 1,
    "toolkit.storage": 1,
    "toolkit.tables": 1,
    "toolkit.work": 1,
    "toolkit.model_folder": 2,
    "toolkit.parallel": 2,
    "toolkit.engine": 3,
    "toolkit.run": 4,
    "toolkit.preprocess": 5,
    "toolkit.training": 5,
    "toolkit.inspection": 5,
    "toolkit.finetuning": 5,
    "toolkit.conversion": 5,
    "toolkit.launching": 6,
    "toolkit.experiments": 6,
    "toolkit.quickstart": 7,
    "toolkit.cli": 8,
    "launchers": 8,
}
"""A package may import packages of lower layers; those of one layer know nothing of one another."""

_NAME = r"(toolkit|tokenization|launchers)(\.\w+)+(:\w+)?"

UNLAYERED = {
    "toolkit": "its __init__ holds the version and imports nothing",
    "toolkit.testing": "may import anything, and is imported by tests alone",
}

NARROWER = {
    "toolkit.parallel": {"toolkit.core", "toolkit.model"},
    "toolkit.core": set(),
    "tokenization": set(),
}
"""Packages that may know less of ours than their layer would allow."""

THIRD_PARTY = {
    "toolkit.objectives": {"numpy", "pydantic"},
    "toolkit.data": {"numpy", "pydantic"},
    # rich and transformers (only to quiet it) are imported inside functions.
    "toolkit.core": {"numpy", "pydantic", "filelock", "psutil", "rich", "transformers"},
}
"""Packages that may use these from outside the standard library and nothing else."""

ONLY_IN = {
    "deepspeed": {"toolkit.engine"},
    "ray": {"toolkit.work"},
    "fsspec": {"toolkit.storage", "toolkit.preprocess"},
    "torch.distributed": {"toolkit.engine", "toolkit.parallel", "toolkit.testing"},
}

INSIDE = {"toolkit.experiments": ("grid", "study", "report")}
"""Folders of a package, of which each may know those before it."""

EXCEPTIONS = {
    ("launchers/pretrain.py", f"toolkit.cli.exit_codes.{name}"): "both ways in map errors to exit codes by one table"
    for name in ("guarded", "print_error_on_rank_0")
}
"""(file, what it imports): the reason why it may."""

GIVEN_AS_TEXT = {
    (
        "toolkit/work/worker.py",
        "toolkit.core.processes",
    ): "the program that runs it",
    (
        "toolkit/work/worker.py",
        "toolkit.work.worker",
    ): "the program that a command starts",
    (
        "toolkit/experiments/study/pieces.py",
        "toolkit.core.processes",
    ): "a program that a worker starts, and that ends with it",
}
"""(file, a module of ours or a name in it, as text): why it is not imported."""

LIGHT = ("toolkit", "toolkit.cli", "toolkit.objectives", "toolkit.data", "tokenization")
"""Importing these loads no torch and none of what takes seconds."""


def _ours(name: str) -> str | None:
    """The package of the table that an imported name belongs to."""
    parts = name.split(".")
    if parts[0] == "toolkit":
        prefix = ".".join(parts[:2])
        return prefix if prefix in LAYERS or prefix in UNLAYERED else "toolkit"
    return parts[0] if parts[0] in ("tokenization", "launchers") else None


def _is_below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _folder(name: str, package: str) -> int:
    """Place of a module among the folders of its package; -1 of what is in none of them."""
    folders = INSIDE[package]
    inside = name.removeprefix(f"{package}.").partition(".")[0]
    return folders.index(inside) if inside in folders else -1


def _violation(module: Module, found: Import) -> str | None:
    """Why a module may not import a name, or None."""
    package, target = module.package, _ours(found.name)
    for restricted, homes in ONLY_IN.items():
        if _is_below(found.name, restricted) and package not in homes:
            return f"{restricted} belongs to {', '.join(sorted(homes))}"
    if target is None:
        top = found.name.split(".")[0]
        allowed = THIRD_PARTY.get(package)
        if allowed is not None and top not in allowed and top not in sys.stdlib_module_names:
            return f"{package} uses {', '.join(sorted(allowed))} only"
        return None
    if target == package and package in INSIDE:
        own, theirs = (_folder(name, package) for name in (module.name, found.name))
        return f"{INSIDE[package][own]} does not know {INSIDE[package][theirs]}" if -1 < own < theirs else None
    if package in UNLAYERED or target == package:
        return None
    if target == "toolkit" and package != "tokenization":
        return None
    if target == "toolkit.testing":
        return "toolkit.testing is imported by tests alone"
    if package in NARROWER and target not in NARROWER[package]:
        return f"{package} may know {', '.join(sorted(NARROWER[package])) or 'nothing of ours'}"
    if LAYERS.get(target, -1) >= LAYERS[package]:
        return f"layer {LAYERS[package]} does not import {target} of layer {LAYERS.get(target)}"
    return None


def test_imports_point_down() -> None:
    wrong = [
        f"{module.path}:{found.line} imports {found.name}: {reason}"
        for module in modules()
        for found in imports(module)
        if (reason := _violation(module, found)) and (module.path, found.name) not in EXCEPTIONS
    ]
    assert wrong == []


def test_no_files_import_one_another() -> None:
    """Under TYPE_CHECKING and inside functions neither: what two files need belongs below both."""
    names = {module.name for module in modules()}
    imported = {
        module.name: names
        & {found.name if found.name in names else found.name.rpartition(".")[0] for found in imports(module)}
        for module in modules()
    }
    # CycleError names the files.
    TopologicalSorter(imported).prepare()


def test_every_package_is_in_the_table() -> None:
    """A new package has to be given its layer here."""
    assert {module.package for module in modules()} <= set(LAYERS) | set(UNLAYERED)


def test_exceptions_are_still_needed() -> None:
    used = {(module.path, found.name) for module in modules() for found in imports(module) if _violation(module, found)}
    assert set(EXCEPTIONS) <= used


@pytest.mark.parametrize(
    ("path", "imported", "is_allowed"),
    [
        ("toolkit.model.encoder", "toolkit.core.types.Targets", True),
        ("toolkit.model.encoder", "toolkit.objectives.clm.CausalLanguageModeling", False),
        ("toolkit.model.encoder", "torch.distributed.all_reduce", False),
        ("toolkit.parallel.topology", "torch.distributed", True),
        ("toolkit.parallel.topology", "toolkit.data.Corpus", False),
        ("toolkit.training.loop", "deepspeed", False),
        ("toolkit.training.loop", "toolkit.conversion.to_hf", False),
        ("toolkit.inspection.runs", "toolkit.training.loop", False),
        ("toolkit.experiments.grid.plan", "toolkit.experiments.study.plan", False),
        ("toolkit.experiments.report.program", "toolkit.experiments.study.plan", True),
        ("toolkit.inspection.runs", "toolkit.run.RunFolder", True),
        ("toolkit.training.loop", "toolkit.engine.Engine", True),
        ("toolkit.training.loop", "toolkit.__version__", True),
        ("toolkit.data.corpus.corpus", "torch", False),
        ("toolkit.data.corpus.corpus", "pathlib.Path", True),
        ("toolkit.core.draws", "toolkit.model.Encoder", False),
        ("toolkit.cli.train", "toolkit.testing.models", False),
        ("toolkit.cli.train", "toolkit.training.pretrain", True),
        ("tokenization.load", "toolkit.core.errors.UserError", False),
        ("tokenization.load", "toolkit", False),
    ],
)
def test_the_rules_can_tell(path: str, imported: str, is_allowed: bool) -> None:
    """The test above would notice: cases on both sides of each rule."""
    module = Module(path=path, name=path, text="", tree=modules()[0].tree)
    assert (_violation(module, Import(imported, 1)) is None) == is_allowed


def test_the_model_does_not_know_about_ranks() -> None:
    """No environment and no process in the model: it is the same on one device and on a thousand."""
    words = ("environ", "getenv", "world_size", "local_rank", "process_group")
    found = [
        f"{module.path}: {word}"
        for module in modules()
        if module.package == "toolkit.model"
        for word in words
        if word in module.text
    ]
    assert found == []


def test_names_given_as_text_exist() -> None:
    """An import that nobody reads: a rename would break it, and it may point up."""
    files = [module for module in modules() if not module.path.endswith("__init__.py")]
    known = {module.name: {getattr(node, "name", "") for node in module.tree.body} for module in files}
    found = {
        (module.path, node.value)
        for module in files
        if module.package not in UNLAYERED
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(_NAME, node.value)
        # A package's name may be a group of entry points, or hold files.
        if ":" in node.value or node.value in known
    }
    assert found == set(GIVEN_AS_TEXT)
    for path, text in GIVEN_AS_TEXT:
        name, _, attribute = text.partition(":")
        assert name in known, f"{path}: {text}"
        assert attribute in {"", *known[name]}, f"{path}: {text}"


@pytest.mark.parametrize("name", LIGHT)
def test_importing_it_loads_nothing_heavy(name: str) -> None:
    heavy = "torch", "deepspeed", "transformers", "datasets", "pyarrow", "tokenizers", "rich", "matplotlib"
    code = f"import sys, {name}; print(*sorted(set(sys.modules) & {set(heavy)!r}))"
    finished = run_apart("-c", code)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == ""
