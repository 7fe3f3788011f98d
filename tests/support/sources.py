"""The project's own source, read as syntax trees: what the architecture tests look at."""

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

_CODE_FOLDERS = ("toolkit", "tokenization", "launchers")
_TEXT_SUFFIXES = {".py", ".md", ".toml", ".json", ".txt", ".yml", ".yaml", ".sh", ".cfg", ".html", ""}
_OUTPUTS = {ROOT / name for name in ("runs", "data", "build", "dist")}
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Module:
    """One Python file: its path below the checkout, dotted name, text and syntax tree."""

    path: str
    name: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """What the layer table calls it: `toolkit.model`, `tokenization`, `launchers`, or `toolkit` itself."""
        parts = self.name.split(".")
        return ".".join(parts[:2]) if parts[0] == "toolkit" else parts[0]


@dataclass(frozen=True)
class Import:
    """A name some module imports, wherever in the file it does so."""

    name: str
    line: int


@dataclass(frozen=True)
class Function:
    """A function or method, by dotted name inside its module."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def num_lines(self) -> int:
        """From `def` to the last line, without the docstring, which may be as long as it needs."""
        first = self.node.body[0]
        is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        docstring = _num_lines(first) if is_docstring else 0
        return _num_lines(self.node) - docstring


def _num_lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file of the product, by path."""
    found = []
    for folder in _CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT)
            parts = relative.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            found.append(Module(path=relative.as_posix(), name=name, text=text, tree=ast.parse(text)))
    return tuple(found)


@cache
def text_files() -> tuple[tuple[str, str], ...]:
    """Every text file of the checkout that belongs to the project, as (path, text)."""
    found = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = sorted(name for name in subfolders if _is_ours(name) and Path(folder, name) not in _OUTPUTS)
        for path in (Path(folder, name) for name in sorted(names) if _is_ours(name)):
            if path.suffix in _TEXT_SUFFIXES:
                text = path.read_text(encoding="utf-8", errors="replace")
                found.append((path.relative_to(ROOT).as_posix(), text))
    return tuple(found)


def _is_ours(name: str) -> bool:
    """No caches, no hidden folders, but the one that holds the checks."""
    return name == ".ci" or not (name.startswith(".") or name == "__pycache__")


def imports(module: Module) -> Iterator[Import]:
    """Every import of a file, those inside functions and under TYPE_CHECKING too.

    `from a import b` counts as `a.b`: whether b is a module or a name in one does not matter to the rules. Use of
    `torch.distributed` after a plain `import torch` counts as importing it.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}:{node.lineno}: relative imports hide where they point"
            yield from (Import(f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            yield Import("torch.distributed", node.lineno)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                yield Import(str(argument.value), node.lineno)


def functions(module: Module) -> Iterator[Function]:
    """Every function and method, nested ones too."""

    def inside(node: ast.AST, prefix: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield Function(f"{prefix}{child.name}", child)
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from inside(child, f"{prefix}{child.name}." if named else prefix)  # type: ignore[attr-defined]

    yield from inside(module.tree, "")


def nesting(node: ast.AST, depth: int = 0) -> int:
    """The deepest stack of blocks (if, for, while, with, try, match) below a node; `elif` opens none."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _SCOPES):
            continue
        is_elif = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        opens = isinstance(child, _BLOCKS) and not is_elif
        deepest = max(deepest, nesting(child, depth + opens))
    return deepest
