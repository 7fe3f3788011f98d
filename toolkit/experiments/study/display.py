"""A study on the terminal: its cost, and its tree as bars over the steps."""

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from toolkit.core.text import counted
from toolkit.experiments.study.declaration import Study
from toolkit.experiments.study.estimate import StudyEstimate
from toolkit.experiments.study.tree import Leaf, Tree

# Bar styles of objectives, in order of appearance; then the glyph of steps in which the learning rate decays.
_STYLES = (("━", "cyan"), ("═", "magenta"), ("─", "green"), ("▬", "yellow"), ("~", "blue"))
_DECAY = "╌"
_FEWEST_COLUMNS, _MOST_COLUMNS, _END_COLUMNS = 20, 60, 40


def show_study(
    screen: Console,
    study: Study,
    tree: Tree,
    estimate: StudyEstimate,
    *,
    tflops: float | None,
    grid: Mapping[str, int] | None = None,
) -> None:
    """Print a study's cost alone and shared, its grid's counts (`grid_counts`), and its tree."""
    screen.print(f"{counted(len(tree.leaves), 'model')} in {study.study.dir}")
    hours = estimate.hours or (None, None)
    rows = [
        ("trained one by one", tree.alone, estimate.alone, hours[0]),
        ("shared", tree.shared, estimate.shared, hours[1]),
    ]
    for name, steps, taken, measured in rows:
        positions = taken.positions
        tokens = f"{positions / 1e9:,.4g} B" if positions >= 1e9 else f"{positions:,}"
        cells = [f"{name:<20}{steps:>13,} steps", f"{tokens} tokens"]
        if taken.flops is not None:
            cells.append(f"{taken.flops:.3g} FLOPs")
            if tflops is not None:
                cells.append(f"{taken.flops / (tflops * 1e12) / 3600:,.0f} GPU hours")
        if measured is not None:
            cells.append(f"{measured:,.2f} hours")
        if steps == tree.shared < tree.alone:
            cells.append(f"{100 * (1 - tree.shared / tree.alone):.0f} % less")
        screen.print("   ".join(cells))
    if tflops is not None:
        screen.print(f"GPU hours at {tflops:,.4g} TFLOP/s a device")
    if estimate.hours is not None:
        screen.print("hours of one run at a time, at the speed that runs of this study have had")
    forks = sum(len(leaf.cuts) for leaf in tree.leaves.values())
    disk = "" if estimate.disk_bytes is None else f"disk {estimate.disk_bytes / 1e9:,.0f} GB: "
    screen.print(f"{disk}{counted(estimate.num_kept, 'checkpoint')} kept, {forks:,} of them to fork from")
    if grid is not None:
        models = counted(grid["models"], "model")
        if grid["models"] > len(tree.leaves):
            models += " (the ends, and checkpoints of keep)"
        sizes = f"{models}, {counted(grid['tasks'], 'task')}"
        screen.print(f"grid: {sizes}: {counted(grid['cells'], 'cell')} of {counted(grid['trainings'], 'training')}")
    if reason := tree.why_nothing_is_shared():
        screen.print(f"nothing is shared: {reason}")
    screen.print()
    for line in tree_rows(tree, screen.width).values():
        screen.print(line)


def tree_rows(tree: Tree, width: int, *, ends: Mapping[str, Text] | None = None) -> dict[str, Text]:
    """A line per model: its name, and a bar from its first own step to its last; under "", the legend of the bars.

    With `ends`, which are shown after the bars, the bars are left out if they have no room.
    """
    guided = list(tree.walk())
    names = max(len(guide) + len(leaf.name) for guide, leaf in guided) + 2
    longest = max(leaf.model.total_steps for _, leaf in guided)
    digits = len(f"{longest:,}")
    room = width - names - 2 * digits - 3
    if ends is not None:
        # Fixed width: bars must not move when a state changes.
        room -= _END_COLUMNS
    columns = min(max(room, _FEWEST_COLUMNS), _MOST_COLUMNS)
    styles: dict[str, tuple[str, str]] = {}
    rows: dict[str, Text] = {}
    for guide, leaf in guided:
        row = rows[leaf.name] = Text(f"{guide}{leaf.name}".ljust(names))
        if ends is None or room >= _FEWEST_COLUMNS:
            row.append(" " * round(leaf.fork * columns / longest))
            row.append(f"{leaf.fork:,} ".rjust(digits + 1) if leaf.fork else " " * (digits + 1))
            row.append_text(_bar(leaf, columns / longest, styles))
            row.append(f" {leaf.model.total_steps:,}")
            row.pad_right(max(names + columns + 2 * digits + 3 - row.cell_len, 1) if ends else 0)
        if ends is not None:
            row.append_text(ends[leaf.name])
    legend = rows[""] = Text()
    for objective, (glyph, colour) in styles.items():
        legend.append(f"{glyph} {objective}   ", style=colour)
    if styles:
        legend.append(f"{_DECAY} decay of the learning rate")
    return rows


def _bar(leaf: Leaf, columns_per_step: float, styles: dict[str, tuple[str, str]]) -> Text:
    """A model's own steps, each in the style of its objective."""
    plan, bar = leaf.model.run.plan, Text()
    first = round(leaf.fork * columns_per_step)
    # A model without own steps gets one column.
    last = max(round(leaf.model.total_steps * columns_per_step), first + 1)
    for column in range(first, last):
        step = min(max(int((column + 0.5) / columns_per_step), leaf.fork), leaf.model.total_steps - 1)
        objective = plan.schedule.phase_at(step).objective
        glyph, colour = styles.setdefault(objective, _STYLES[len(styles) % len(_STYLES)])
        bar.append(_DECAY if plan.has_decayed(step + 1) else glyph, style=colour)
    return bar
