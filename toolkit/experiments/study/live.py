"""A study on the terminal while it trains: its tree, and what each model does."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from toolkit.core.console import console
from toolkit.experiments.study.display import tree_rows
from toolkit.experiments.study.state import DONE, FAILED, NOT_STARTED, TRAINING, WAITING, StudyState

# Of states; the first are shown where there is no room for all.
_SIGNS = {
    TRAINING: ("▶", "bold cyan"),
    FAILED: ("✗", "bold red"),
    WAITING: ("·", "dim"),
    NOT_STARTED: ("✗", "red"),
    DONE: ("✓", "green"),
}


@contextmanager
def shown(state: StudyState) -> Iterator[Live | None]:
    """The tree on the terminal, for the block, drawn at each `refresh`; None without a terminal."""
    screen = console()
    if not screen.is_terminal:
        yield None
        return
    # It cuts itself.
    with Live(LiveTree(state), console=screen, auto_refresh=False, vertical_overflow="visible") as live:
        yield live


class LiveTree:
    """The tree of a study that trains, as far as the terminal has room: first what trains, then what failed."""

    def __init__(self, state: StudyState) -> None:
        self._state = state

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> Iterator[Text]:
        states = {leaf.name: self._state.of(leaf) for leaf in self._state.tree.leaves.values()}
        ends = {
            name: Text(f"{_SIGNS[state.kind][0]} {state.text}", style=_SIGNS[state.kind][1])
            for name, state in states.items()
        }
        rows, order = tree_rows(self._state.tree, screen.width, ends=ends), list(_SIGNS)
        # What is left below them: the rest in a line, the legend, and the sums.
        room = max(screen.height - 4, 1)
        shown = sorted(states, key=lambda name: order.index(states[name].kind))[:room]
        lines = [rows[name] for name in rows if name in shown]
        if left_out := Counter(states[name].kind for name in states.keys() - shown):
            lines.append(Text("more: " + ", ".join(f"{left_out[kind]:,} {kind}" for kind in order if left_out[kind])))
        for line in filter(None, (*lines, rows[""], Text(self._state.summary()))):
            line.truncate(screen.width, overflow="ellipsis")
            yield line
