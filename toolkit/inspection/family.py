"""Family of a run: the runs that it was forked or initialized from, and the runs forked or initialized from it.

Ancestors are found through run files, descendants by a search beside these runs: a run does not record its forks.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.core.text import terminal_safe
from toolkit.run.folder import RunFolder, found_near

if TYPE_CHECKING:
    from rich.tree import Tree


def family_tree(run: Path) -> "Tree | None":
    """Tree of the runs related to this one; None if there are none."""
    from rich.text import Text
    from rich.tree import Tree

    top, ancestors = run.resolve(), [run.resolve()]
    while (link := _link(top)) is not None and link[0] not in ancestors:
        top, _ = link
        ancestors.append(top)
    children: dict[Path, list[tuple[Path, str]]] = {}
    for folder in sorted(_runs_beside(ancestors)):
        if (link := _link(folder)) is not None:
            parent, taken = link
            children.setdefault(parent, []).append((folder, taken))
    if not children:
        return None
    tree = Tree(Text.assemble(("Family", "bold"), terminal_safe(f"\n{_name(top, run)}")))
    _grow(tree, top, children, run, seen={top})
    return tree


def _grow(
    tree: "Tree", folder: Path, children: dict[Path, list[tuple[Path, str]]], run: Path, *, seen: set[Path]
) -> None:
    for child, taken in children.get(folder, []):
        if child not in seen:
            seen.add(child)
            _grow(tree.add(_name(child, run, f", {taken}")), child, children, run, seen=seen)


def _name(folder: Path, run: Path, taken: str = "") -> str:
    is_shown = folder == run.resolve()
    shown = run if is_shown else Path(run.parent, folder.name) if folder.parent == run.resolve().parent else folder
    step = RunFolder(folder).newest_step()
    stands = f"saved up to step {step:,}" if step else "no checkpoint yet"
    return f"{shown} ({stands}){taken}{' <- this run' * is_shown}"


def _link(folder: Path) -> tuple[Path, str] | None:
    """The run that this folder's run started from, and a phrase for what it took; None unless that run still exists."""
    settings = _settings(folder)
    for key in ("fork", "init"):
        source = settings.get(key, {}).get("from") if isinstance(settings.get(key), dict) else None
        if isinstance(source, str) and (parent := _run_of(found_near(source, folder))) is not None:
            step = settings[key].get("step")
            at = f" at step {step:,}" if isinstance(step, int) else ""
            return parent, (f"weights of {Path(source).name}" if key == "init" else f"branched{at}")
    return None


def _run_of(source: Path) -> Path | None:
    """Run folder of a checkpoint, of a checkpoints folder, or of a run folder itself; None for anything else."""
    resolved = source.resolve()
    # RUN_DIR, RUN_DIR/checkpoints or RUN_DIR/checkpoints/step-NNNNNNNN; a run file further up is another run's.
    for folder in (resolved, resolved.parent, resolved.parent.parent):
        run = RunFolder(folder)
        if run.settings_file.is_file() and resolved in (run.path, run.checkpoints, run.checkpoints / resolved.name):
            return folder
    return None


def _runs_beside(ancestors: list[Path]) -> Iterator[Path]:
    for parent in {folder.parent for folder in ancestors}:
        try:
            yield from {folder for folder in parent.iterdir() if RunFolder(folder).settings_file.is_file()}
        except OSError:
            continue


def _settings(folder: Path) -> dict[str, Any]:
    """The run file as plain data; empty if it cannot be read, and then the run has no family."""
    try:
        return tomllib.loads(RunFolder(folder).settings_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
