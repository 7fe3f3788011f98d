"""The project's words: phrases and names that a native reader stumbles over stay out.

The lists hold only what is unambiguous: "a text" and "goes on" have their places in good English.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import Module, modules, text_files

FOLDERS = ("toolkit/", "tokenization/", "docs/", "launchers/", "benchmarks/", "README.md")

PHRASES = {
    r"is refused: it has to be": "invalid value for ...: expected ...",
    r"(can|could) ?not be had": "could not download",
    r"\banew\b": "again; rebuild it",
    r"\bfor ever\b": "forever",
    r"\bbeyond repair\b": "have diverged; is corrupted",
    r"\bone a GPU\b": "one per GPU",
    r"\bnobody says\b": "unknown; not given",
    r"(?<!there )\bis no (folder|directory|file|tokenizer|checkpoint|corpus|number|text|matter|data set)\b": "is not a",
    r"(?-i:\bThere are: )": "Available ...: ",
    r"does not stay intact": "was corrupted",
    r"goes on behind": "resumes after",
    r"or says that not": "or an error is raised",
    r"\bNumbers of the exported": "dtype of the exported weights",
    r"\bNumbers in the forward": "compute dtype",
    r"counted words, no network": "bag-of-words baseline",
    r"\bprocessor time\b": "CPU time",
    r"programs ran or waited": "load average (15 min)",
    r"\b(useful|much) arithmetic\b": "model FLOPs",
    r"\bnobody\b(?! in New Yorkshire)": "no process; no rank; not measured",
    r"\b(whoever|somebody)\b": "the process that; a user",
    r"\b(is|are|was|were|be|been) told\b(?! apart| from)": "is reported",
    r"(?<!left )(?<!stay )(?<!nothing )(?<!leave )(?<!leaves )(?<!stands )(?<!is )\bbehind\b(?! these| masks)": "after",
    r"\bmade again\b": "rebuilt; redone",
    r"\b(is|was|are|were) begun\b": "is started; is in progress",
    r"\bbegun from\b": "started from",
    r"\bhardly any\b": "near zero; few",
    r"\bat hand\b": "available",
    r"\b(is|are) worth nothing\b": "has no effect",
    r"\bwithout a word\b": "silently",
    r"\bcannot be told\b(?! apart| from)": "is unknown",
}
"""What is looked for (in any case, across line ends and string ends), and what is said instead."""

NAMES = {
    "other_positions": "rope_differences",
    "bring_model": "_fill_model_from_checkpoint",
    "check_own": "check_resumable",
    "_tell": "_run_hooks",
    "_give_up": "_raise_non_finite",
    "_speaks_for_itself": "_should_report",
    "_supervise": "_make_micro_batch",
    "Shares": "StepsAhead",
    "patiently": "with_retries",
    "naming": "errors_naming",
    "without_documents": "no_documents_error",
    "hushed": "quiet_transformers",
    "held": "locked",
    "_judged": "_exit_code_and_message",
    "built_beside": "atomic_directory",
    "Ours": "NativeModel",
    "open_ours": "open_native",
    "strangers": "unexpected_files",
    "Told": "on_read",
    "told": "on_read",
    "OwnTexts": "FallbackTexts",
    "odd_characters": "mismatched_characters",
    "placed": "to_device",
    "times_transposed": "linear",
    "rotation": "rope_cos_sin",
    "rotate": "apply_rope",
    "_own": "_fill_auto",
    "refusal": "deepspeed_error_message",
    "FastEncoder": "a tokenizer backend: `encoder` is the model",
    "TextEncoder": "a tokenizer backend: `encoder` is the model",
    "EncoderChoice": "a tokenizer backend: `encoder` is the model",
}
"""Names of functions, classes, parameters and attributes that say nothing to a stranger, and their successors."""

MODULES = {
    "words": "types",
    "wording": "text",
    "plain_words": "text",
    "frequencies": "baselines",
    "hidden_words": "masked_predictions",
    "surroundings": "environment",
}
"""Names of files, likewise."""

FIRST_WORDS = re.compile(r"(Whether|If|(This|The) function|This (method|class|module))\b")
"""Beginnings of docstrings that put off what is there; a noun or a verb stands first."""


def _prose(path: str, text: str) -> str:
    """The text on one line, strings of several lines put together."""
    if path.endswith(".py"):
        text = re.sub(r"[\"']\s*\n\s*[rf]?[\"']", "", text)
        text = re.sub(r"\n\s*#", "\n", text)
    return re.sub(r"\s+", " ", text)


def _phrases(path: str, text: str) -> list[str]:
    prose = _prose(path, text)
    return [
        f"{path}: ...{prose[max(0, found.start() - 40) : found.end() + 30]}... say: {instead}"
        for phrase, instead in PHRASES.items()
        for found in re.finditer(phrase, prose, re.IGNORECASE)
    ]


def _defined(module: Module) -> Iterator[str]:
    """Names that a file gives: its own, its functions', classes', parameters' and attributes'."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name | ast.Attribute):
            yield node.target.id if isinstance(node.target, ast.Name) else node.target.attr


def test_no_forbidden_phrase() -> None:
    found = [line for path, text in text_files() if path.startswith(FOLDERS) for line in _phrases(path, text)]
    assert found == [], "\n".join(found)


def test_no_riddle_is_a_name() -> None:
    found = [
        f"{module.path}: {name}; say {NAMES[name]}"
        for module in modules()
        for name in sorted(set(_defined(module)) & set(NAMES))
    ]
    found += [module.path for module in modules() if Path(module.path).stem in MODULES]
    assert found == [], "\n".join(found)


def _openings(module: Module) -> list[str]:
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(module.tree) if isinstance(node, nodes)]
    return [f"{module.path}: {text.splitlines()[0]}" for text in docstrings if FIRST_WORDS.match(text)]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = [line for module in modules() for line in _openings(module)]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('"""Whether it is."""', 1),
        ('class A:\n    """The function."""\n\n    def b(self): "This method"', 2),
        ('"""Rows that fit."""\nx = 1\n"""Whether it is read."""', 0),
    ],
)
def test_openings_are_found_in_docstrings_alone(text: str, number: int) -> None:
    assert len(_openings(Module("a.py", "a", text, ast.parse(text)))) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('raise E(\n    f"{x} is refused: it has "\n    f"to be {y}"\n)', 1),
        ("# made\n# anew, for ever", 2),
        ('"""The folder\n    is no folder."""', 1),
        ("there is no file; a renewed text; renewal", 0),
        ("it stops behind the step, and is\n# told so", 2),
        ("nothing is left behind that can be told apart", 0),
    ],
)
def test_phrases_are_found_wherever_lines_end(text: str, number: int) -> None:
    assert len(_phrases("a.py", text)) == number
