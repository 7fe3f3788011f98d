"""Sizes, names and words of the source: what a reader may rely on in every file."""

import ast
import re
from collections.abc import Iterator

from tests.support.sources import Module, functions, modules, nesting, text_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_NESTING = 3
MAX_LOOP_LINES = 80

LONG_FUNCTIONS: dict[str, str] = {}
"""path:function: why it may be longer."""

DEEP_FUNCTIONS: dict[str, str] = {}
"""path:function: why it may nest deeper."""

BOOLEAN_PARAMETERS = {
    "adopt.overwrite": "the option of that name: permission, not another way to work",
    "to_hf.sentence_transformers": "the option of that name: files beside the same model",
    "Linear.__init__.bias": "torch's own signature",
}
"""function.parameter: why a public function may take it; elsewhere an enum or a second function says which of two."""

UNDESCRIBED_SETTINGS = {
    "toolkit/data/corpus/manifest.py:SpecialIds": "a record in corpus.json; its class explains the four ids at once",
    "toolkit/preprocess/accounts.py:BadRow": "a record in group.json, which nobody writes by hand",
}
"""path:Class: why its fields need no description."""

MACHINE_PATH = re.compile(r"(?<![\w.~}\]/-])/(?:work|home|root|Users)/")
SHARED = re.compile(r"(?:\.\./|/)shared\b")

_SHAPED = re.compile(r"[a-z][a-z0-9_]*_([A-Z0-9n]*[A-Z][A-Z0-9n]*)")
_WITH_SHAPES = ("data", "engine", "model", "objectives", "parallel", "training")

WITH_FORBIDDEN_WORDS = {"tests/architecture/test_source.py": "names the words it looks for"}


def test_files_are_short() -> None:
    long = {module.path: lines for module in modules() if (lines := len(module.text.splitlines())) > MAX_FILE_LINES}
    assert long == {}


def test_functions_are_short() -> None:
    long = {
        f"{module.path}:{function.name}": function.num_lines
        for module in modules()
        for function in functions(module)
        if function.num_lines > MAX_FUNCTION_LINES
    }
    assert {name: lines for name, lines in long.items() if name not in LONG_FUNCTIONS} == {}
    assert set(LONG_FUNCTIONS) <= set(long), "an exception that is no longer needed"


def test_nesting_is_shallow() -> None:
    deep = {
        f"{module.path}:{function.name}": depth
        for module in modules()
        for function in functions(module)
        if (depth := nesting(function.node)) > MAX_NESTING
    }
    assert {name: depth for name, depth in deep.items() if name not in DEEP_FUNCTIONS} == {}
    assert set(DEEP_FUNCTIONS) <= set(deep), "an exception that is no longer needed"


def test_the_loop_fits_on_a_screen() -> None:
    """The functions of the loop together: phase, batch, step, hooks. Extras are hooks."""
    (loop,) = (module for module in modules() if module.path == "toolkit/training/loop.py")
    lengths = {function.name: function.num_lines for function in functions(loop) if "." not in function.name}
    assert "train" in lengths
    assert sum(lengths.values()) <= MAX_LOOP_LINES


def _boolean_parameters(module: Module) -> Iterator[str]:
    """Parameters of public functions that are annotated `bool`; commands take theirs from the command line."""
    for function in functions(module) if module.package != "toolkit.cli" else ():
        parts = function.name.split(".")
        is_nested = len(parts) > 1 and not parts[-2].lstrip("_")[:1].isupper()
        is_private = any(part.startswith("_") and not part.startswith("__") for part in parts)
        arguments = function.node.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            if argument.annotation and ast.unparse(argument.annotation) == "bool" and not (is_nested or is_private):
                yield f"{function.name}.{argument.arg}"


def test_letters_of_shapes_are_in_the_legend() -> None:
    text = dict(text_files())["docs/architecture.md"]
    legend = set(re.findall(r"\| ([A-Z]) (?=\|)", text))
    used = {
        (letter, name)
        for module in modules()
        if module.name.startswith(tuple(f"toolkit.{package}." for package in _WITH_SHAPES))
        for node in ast.walk(module.tree)
        for name in [getattr(node, "id", "") or getattr(node, "arg", "") or getattr(node, "attr", "")]
        if isinstance(name, str) and (found := _SHAPED.fullmatch(name))
        for letter in re.sub("[^A-Z]", "", found[1])
    }
    assert {(letter, name) for letter, name in used if letter not in legend} == set()
    assert legend == {letter for letter, _ in used}, "a letter that no name has"


def test_no_boolean_selects_behaviour() -> None:
    found = {name: module.path for module in modules() for name in _boolean_parameters(module)}
    assert {name: path for name, path in found.items() if name not in BOOLEAN_PARAMETERS} == {}
    assert set(BOOLEAN_PARAMETERS) <= set(found), "an exception that is no longer needed"


def test_the_booleans_are_found() -> None:
    source = "def run(a: bool) -> None: ...\nclass A:\n    def f(self, *, b: bool = True) -> None: ...\n"
    source += "def _private(a: bool) -> None: ...\ndef on(a: int) -> bool:\n    def inner(c: bool) -> None: ...\n"
    module = Module(path="x.py", name="toolkit.x", text=source, tree=ast.parse(source))
    assert list(_boolean_parameters(module)) == ["run.a", "A.f.b"]


def test_there_is_no_drawer_for_everything() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert [module.path for module in modules() if module.path.rsplit("/", 1)[-1] in drawers] == []


def _exported(module: Module) -> list[str] | None:
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return list(ast.literal_eval(node.value))
    return None


def _defined(module: Module) -> Iterator[str]:
    """Names bound at the top level of a file."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
    for statement in module.tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Assign):
            yield from (
                name.id for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)
            )
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _order(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions; each group ascending: the order that the linter keeps too."""
    return (0 if name.isupper() else 1 if name.lstrip("_")[:1].isupper() else 2), name


def test_only_faces_say_what_they_export() -> None:
    """`__all__` stands in the `__init__` of a package; elsewhere a leading underscore says what is private."""
    faces = {module.path for module in modules() if module.path.endswith("__init__.py")}
    assert {module.path for module in modules() if _exported(module) is not None} <= faces


def test_exports_are_sorted_and_exist() -> None:
    wrong = []
    for module in modules():
        exported = _exported(module) or []
        if exported != sorted(exported, key=_order):
            wrong.append(f"{module.path}: not sorted")
        is_lazy = any(function.name == "__getattr__" for function in functions(module))
        missing = set(exported) - set(_defined(module))
        if missing and not is_lazy:
            wrong.append(f"{module.path}: exports {sorted(missing)}, which it does not define")
        if len(set(exported)) != len(exported):
            wrong.append(f"{module.path}: exports a name twice")
    assert wrong == []


def _settings_classes() -> Iterator[tuple[Module, ast.ClassDef]]:
    """Classes that derive from the settings base, directly or through one another."""
    known = {"Settings"}
    classes = [
        (module, node) for module in modules() for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)
    ]
    for _ in range(5):
        for _, node in classes:
            if any(ast.unparse(base).split(".")[-1] in known for base in node.bases):
                known.add(node.name)
    yield from ((module, node) for module, node in classes if node.name in known - {"Settings"})


def test_every_setting_is_described() -> None:
    undescribed = []
    for module, node in _settings_classes():
        for index, statement in enumerate(node.body):
            if not isinstance(statement, ast.AnnAssign) or "ClassVar" in ast.unparse(statement.annotation):
                continue
            following = node.body[index + 1] if index + 1 < len(node.body) else None
            is_described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if not is_described and "description=" not in ast.unparse(statement):
                undescribed.append((f"{module.path}:{node.name}", ast.unparse(statement.target)))
    assert [found for found in undescribed if found[0] not in UNDESCRIBED_SETTINGS] == []


def test_the_settings_are_found() -> None:
    """The test above looks at what it should."""
    assert {"MlmSettings", "PhaseSettings"} <= {node.name for _, node in _settings_classes()}


def test_no_path_of_one_machine() -> None:
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in text_files()
        if path not in WITH_FORBIDDEN_WORDS
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


def test_only_tests_that_skip_read_shared_folders() -> None:
    found = [
        path
        for path, text in text_files()
        if SHARED.search(text)
        and path not in WITH_FORBIDDEN_WORDS
        and not (path.startswith("tests/") and "skip" in text)
    ]
    assert found == []
