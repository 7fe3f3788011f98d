"""State of a study in training, read from its files: the tree with each model's state, and lines on its pieces."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from toolkit.core.text import counted, duration
from toolkit.experiments.study.display import tree_rows
from toolkit.experiments.study.estimate import Speed
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.plan import RunPiece, StudyPlan
from toolkit.experiments.study.tree import Leaf
from toolkit.run.divergence import read_divergence
from toolkit.work.claims import Claims, Job
from toolkit.work.show import Line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

TRAINING, FAILED, DIVERGED, WAITING, NOT_STARTED, DONE = (
    "training", "failed", "diverged", "waiting", "not started", "done",
)  # fmt: skip
# Signs of states; models in the first ones are shown if there is no room for all.
_SIGNS = {
    TRAINING: ("▶", "bold cyan"),
    FAILED: ("✗", "bold red"),
    DIVERGED: ("↯", "bold yellow"),
    WAITING: ("·", "dim"),
    NOT_STARTED: ("✗", "red"),
    DONE: ("✓", "green"),
}


class ModelState(NamedTuple):
    """State of a model, and a description of it."""

    kind: str
    text: str


class StudyView:
    """Running, ended and failed pieces of a plan, and the steps of each model, including its giver's."""

    def __init__(self, plan: StudyPlan, folder: StudyFolder, job: Job) -> None:
        self._plan, self._tree, self._folder, self._claims = plan, plan.tree, folder, Claims(job)
        self._pieces = {item.key: piece for item, piece in zip(job.items, plan.pieces, strict=True)}
        self.steps = {name: leaf.model.total_steps for name, leaf in plan.tree.leaves.items()}
        self.steps |= {piece.name: piece.first for piece in reversed(plan.pieces)}
        self._speed, self._running = Speed(plan.tree), set[str]()
        self._said = set[tuple[str, str]]()

    def look(self) -> None:
        """Read which pieces have started and ended, and the progress of the running ones."""
        claims = self._claims
        claims.look()
        self._running = claims.running
        for key in claims.done:
            piece = self._pieces[key]
            self.steps[piece.name] = max(self.steps[piece.name], piece.until)
        for name in {self._pieces[key].name for key in self._running}:
            self.steps[name] = max(self.steps[name], self._speed.read(self._tree.leaves[name]))

    def is_over(self) -> bool:
        """True if all pieces have ended, or no process trains them."""
        return not self._claims.left or not self._running

    def news(self) -> Iterator[Line]:
        """Lines on pieces that have started and ended."""
        for key, piece in self._pieces.items():
            if key in self._claims.done:
                text, is_news = f"done up to step {piece.until:,}", False
            elif key in self._claims.failed:
                text, is_news = self._failure(key, piece), True
            elif key in self._running:
                text, is_news = f"from step {piece.first:,} to {piece.until:,}", False
            else:
                continue
            if (key, text) not in self._said:
                self._said.add((key, text))
                yield Line(f"{piece.name}: {text}", is_news)

    def _failure(self, key: str, piece: RunPiece) -> str:
        """Why a piece failed, or was not even started."""
        if piece.needs is None or self._claims.is_ready(self._claims.items[key]):
            return self._claims.failed[key]
        name, step = piece.needs
        return f"not started on the way to step {piece.until:,}: it needs step {step:,} of {name}"

    def of(self, leaf: Leaf) -> ModelState:
        """State of a model."""
        claims, step = self._claims, self.steps[leaf.name]
        own = [key for key, piece in self._pieces.items() if piece.name == leaf.name and key not in claims.done]
        if not own:
            known = self._plan.diverged.get(leaf.name)
            return ModelState(DONE, "done") if known is None else ModelState(DIVERGED, f"diverged at {known.step:,}")
        key, piece = own[0], self._pieces[own[0]]
        needs = None if piece.needs is None or self._claims.is_ready(claims.items[key]) else piece.needs
        if key in claims.failed:
            if needs is not None:
                return ModelState(NOT_STARTED, f"not started: it needs {needs[0]} at {needs[1]:,}")
            if (found := read_divergence(self._plan.folder(leaf.name))) is not None:
                return ModelState(DIVERGED, f"diverged at {found.step:,}")
            return ModelState(FAILED, f"failed at {step:,}: {self._folder.log(piece.key)}")
        if key in self._running:
            seconds = self._speed.seconds(leaf, step)
            left = "" if seconds is None else f", {duration(seconds)} left"
            return ModelState(TRAINING, f"step {step:,} of {leaf.model.total_steps:,}{left}")
        return ModelState(WAITING, "waits for its turn" if needs is None else f"waits for {needs[0]} at {needs[1]:,}")

    def summary(self) -> str:
        """'7,200 of 206,000 steps, 3 of 27 pieces, 41:10:00 left'."""
        leaves = self._tree.leaves.values()
        missing = sum(leaf.model.total_steps - self.steps[leaf.name] for leaf in leaves)
        parts = [f"{max(self._tree.shared - missing, 0):,} of {counted(self._tree.shared, 'step')}"]
        parts.append(f"{len(self._claims.done):,} of {counted(len(self._pieces), 'piece')}")
        expected = [leaf for leaf in leaves if self.of(leaf).kind in (TRAINING, WAITING)]
        seconds = [self._speed.seconds(leaf, self.steps[leaf.name]) or 0.0 for leaf in expected]
        if any(seconds):
            # Assumes as many runs in parallel as now, and at least the time of the longest.
            parts.append(f"{duration(max(sum(seconds) / max(len(self._running), 1), *seconds))} left")
        return ", ".join(parts)

    def picture(self) -> "StudyView":
        """The tree, drawn as far as the terminal has room: models in training first, then failed ones."""
        return self

    def __rich_console__(self, screen: "Console", options: "ConsoleOptions") -> Iterator["Text"]:
        from rich.text import Text

        states = {leaf.name: self.of(leaf) for leaf in self._tree.leaves.values()}
        ends = {
            name: Text(f"{_SIGNS[state.kind][0]} {state.text}", style=_SIGNS[state.kind][1])
            for name, state in states.items()
        }
        rows, order = tree_rows(self._tree, screen.width, ends=ends), list(_SIGNS)
        # Lines below the models: the rest in one line, the legend, and the totals.
        room = max(screen.height - 4, 1)
        shown = sorted(states, key=lambda name: order.index(states[name].kind))[:room]
        lines = [rows[name] for name in rows if name in shown]
        if left_out := Counter(states[name].kind for name in states.keys() - shown):
            lines.append(Text("more: " + ", ".join(f"{left_out[kind]:,} {kind}" for kind in order if left_out[kind])))
        for line in filter(None, (*lines, rows[""], Text(self.summary()))):
            line.truncate(screen.width, overflow="ellipsis")
            yield line
