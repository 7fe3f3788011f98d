"""A study while it trains: where its models stand, and its tree on the terminal with what each of them does."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from toolkit.core.console import console
from toolkit.core.text import counted, duration
from toolkit.execution.work import NOBODY, Event, Failed, Finished
from toolkit.experiments.study.display import tree_rows
from toolkit.experiments.study.estimate import Speed
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.plan import PieceKey, StudyPlan
from toolkit.experiments.study.tree import Leaf

TRAINING, FAILED, WAITING, NOT_STARTED, DONE = "training", "failed", "waiting", "not started", "done"
# Of states; the first are shown where there is no room for all.
_SIGNS = {
    TRAINING: ("▶", "bold cyan"),
    FAILED: ("✗", "bold red"),
    WAITING: ("·", "dim"),
    NOT_STARTED: ("✗", "red"),
    DONE: ("✓", "green"),
}


@dataclass(frozen=True)
class ModelState:
    """What a model does, and in words what there is to know of it."""

    kind: str
    text: str


class StudyState:
    """The pieces of a study that train, have ended and have failed, and the steps of each model, with its giver's."""

    def __init__(self, plan: StudyPlan, folder: StudyFolder) -> None:
        self.tree, self.running = plan.tree, set[PieceKey]()
        self.steps = {name: leaf.model.total_steps for name, leaf in plan.tree.leaves.items()}
        self.steps |= {piece.name: piece.first for piece in reversed(plan.pieces)}
        self._pieces, self._folder, self._speed = plan.pieces, folder, Speed(plan.tree)
        self._finished, self._failed = set[PieceKey](), dict[PieceKey, Failed]()

    def begin(self, key: PieceKey) -> None:
        """A worker has begun a piece."""
        self.running.add(key)

    def end(self, event: Event) -> None:
        """A piece has finished, has failed, or has lost its worker."""
        self.read()
        self.running.discard(event.key)
        if isinstance(event, Finished):
            name, self.steps[name] = event.key
            self._finished.add(event.key)
        elif isinstance(event, Failed):
            self._failed[event.key] = event

    def read(self) -> None:
        """Look how far the runs that train have come."""
        for name, _ in self.running:
            self.steps[name] = max(self.steps[name], self._speed.read(self.tree.leaves[name]))

    def of(self, leaf: Leaf) -> ModelState:
        """State of a model."""
        name, step = leaf.name, self.steps[leaf.name]
        piece = next((each for each in self._pieces if each.name == name and each.key not in self._finished), None)
        if piece is None:
            return ModelState(DONE, "done")
        needs = None if piece.needs in self._finished else piece.needs
        if piece.key in self._failed:
            if needs is not None and self._failed[piece.key].worker == NOBODY:
                return ModelState(NOT_STARTED, f"not started: it needs {needs[0]} at {needs[1]:,}")
            return ModelState(FAILED, f"failed at {step:,}: {self._folder.log(*piece.key)}")
        if piece.key in self.running:
            seconds = self._speed.seconds(leaf, step)
            left = "" if seconds is None else f", {duration(seconds)} left"
            return ModelState(TRAINING, f"step {step:,} of {leaf.model.total_steps:,}{left}")
        return ModelState(WAITING, "waits for its turn" if needs is None else f"waits for {needs[0]} at {needs[1]:,}")

    def summary(self) -> str:
        """'7,200 of 206,000 steps, 3 of 27 pieces, 41:10:00 left'."""
        leaves = self.tree.leaves.values()
        missing = sum(leaf.model.total_steps - self.steps[leaf.name] for leaf in leaves)
        parts = [f"{max(self.tree.shared - missing, 0):,} of {counted(self.tree.shared, 'step')}"]
        parts.append(f"{len(self._finished):,} of {counted(len(self._pieces), 'piece')}")
        expected = [leaf for leaf in leaves if self.of(leaf).kind in (TRAINING, WAITING)]
        seconds = [self._speed.seconds(leaf, self.steps[leaf.name]) or 0.0 for leaf in expected]
        if any(seconds):
            # As many go on side by side as now, and the longest takes its time.
            parts.append(f"{duration(max(sum(seconds) / max(len(self.running), 1), *seconds))} left")
        return ", ".join(parts)


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
