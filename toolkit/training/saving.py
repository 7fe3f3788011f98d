"""Checkpoint saving: when it is due, and the content of manifests."""

import logging
import math

import toolkit
from toolkit.checkpoint.manifest import CheckpointManifest, VocabularyEntry
from toolkit.core.errors import ToolkitError
from toolkit.engine.engine import Engine
from toolkit.engine.saving import AsyncCheckpoint
from toolkit.run.division import layout_of
from toolkit.run.identity import snapshot
from toolkit.run.metrics import BestStep, best_step
from toolkit.run.resolve import ResolvedRun
from toolkit.training.hooks import HookList
from toolkit.training.rank_errors import RankErrors
from toolkit.training.run_state import RunState

_log = logging.getLogger(__name__)


class CheckpointSaver:
    """Saves checkpoints of a run while it trains, one at a time; hooks are called when each has appeared.

    `first_step`, from which this process starts, needs no checkpoint. With `checkpoint.keep_best`, steps with the
    lowest loss so far are saved. If any rank could not write, all raise a CheckpointError.
    """

    def __init__(self, run: ResolvedRun, engine: Engine, *, first_step: int) -> None:
        self._run, self._engine, self._manifest = run, engine, _manifest(run, engine)
        self._first_step = self._saved_step = first_step
        self._best: BestStep | None = None
        self._in_flight: AsyncCheckpoint | None = None

    def is_due(self, state: RunState) -> bool:
        """Return whether a checkpoint is due after this step, whether or not it is the last of the process."""
        is_best = self._best is not None and self._best.step == state.step
        return is_best or self._run.settings.checkpoint.is_due(state.step)

    def after_evaluation(self, state: RunState) -> None:
        """Record the validation losses of a step; those before the first step save nothing. Collective."""
        if (objective := self._run.settings.best_by) is not None and state.step:
            found = BestStep(state.losses.get(f"validation/{objective}", math.inf), state.step)
            self._best = min(self._best or self._best_before(), found)

    @property
    def is_writing(self) -> bool:
        """Return whether this rank is still writing; the checkpoint in flight need not advance until all are done."""
        return self._in_flight is not None and self._in_flight.is_writing

    def save_if_due(self, state: RunState, hooks: HookList) -> None:
        """Save after a step if due, also before the first one; collective. `save_last` saves the last."""
        if self.is_due(state) and (state.step == 0 or state.step != self._saved_step):
            self.save(state, hooks)

    def save(self, state: RunState, hooks: HookList) -> None:
        """Start a checkpoint of this state, once the one in flight has appeared; collective."""
        self.finish(hooks)
        plan, folder = self._run.plan, self._run.folder
        manifest = self._manifest.model_copy(
            update={
                "step": state.step,
                "optimizer_step": self._engine.optimizer_step,
                "tokens": state.tokens,
                "phase_settings": plan.phase_settings(max(state.step - 1, 0)),
                "data_position": plan.position(state.step),
                "data_digest": state.digest.hex(),
                "losses": dict(state.losses),
                "recent_losses": dict(state.recent_losses),
            }
        )
        self._in_flight = AsyncCheckpoint(
            self._engine, folder.checkpoints, manifest=manifest, tokenizer_folder=folder.tokenizer
        )
        self._saved_step = state.step

    def advance(self, hooks: HookList) -> None:
        """Advance the checkpoint in flight, if any, once all ranks have written; collective."""
        checkpoint, self._in_flight = self._in_flight, None
        if checkpoint is None:
            return
        if checkpoint.advance():
            # A hook may wait for long (for a copy, say). The other ranks do so here, not in the next step's collective.
            with self._engine.ranks.together():
                hooks.each(lambda hook: hook.on_checkpoint(checkpoint.step))
        else:
            self._in_flight = checkpoint

    def finish(self, hooks: HookList) -> None:
        """Wait until no checkpoint is in flight; collective."""
        while self._in_flight is not None:
            self.advance(hooks)

    def save_last(self, state: RunState, hooks: HookList, errors: RankErrors) -> None:
        """Save the last state of the process, unless already saved, then raise hook errors of any rank; collective."""
        try:
            if state.step != self._saved_step:
                self.save(state, hooks)
            self.finish(hooks)
        except ToolkitError as error:
            if error.is_agreed:
                # A hook's error comes first: a full disk is the cause of both.
                errors.raise_agreed()
            raise
        errors.raise_agreed()

    def close(self, error: BaseException) -> None:
        """Finish the checkpoint in flight after an error that all ranks raise together; abandon it after any other."""
        if self._in_flight is None:
            return
        if not (isinstance(error, ToolkitError) and error.is_agreed):
            self._in_flight.abandon()
            return
        try:
            self.finish(HookList([], RankErrors(self._engine.ranks)))
        except Exception as raised:
            # `error` is the one that ends the run.
            if self._engine.ranks.rank == 0:
                _log.warning("the checkpoint in flight could not be finished: %s", raised)

    def _best_before(self) -> BestStep:
        """The best step up to the one from which this process starts; collective."""
        run, ranks, best = self._run, self._engine.ranks, None
        with ranks.together():
            if ranks.rank == 0:
                best = best_step(run.folder, run.settings, run.data.corpora.hashes(), up_to=self._first_step)
        return ranks.broadcast(best or BestStep(math.inf, -1))


def _manifest(run: ResolvedRun, engine: Engine) -> CheckpointManifest:
    """The manifest of the run's checkpoints, without the run's progress."""
    corpus, before = run.data.corpus, run.continuation.before
    stages = tuple(map(len, run.stages)) if run.settings.parallel.pp > 1 else ()
    return CheckpointManifest(
        toolkit_version=toolkit.__version__,
        step=0,
        optimizer_step=0,
        tokens=0,
        data_position=0,
        data_digest="",
        settings=snapshot(run.settings),
        corpora=run.data.corpora.hashes({} if before is None else before.corpora) | run.continuation.hashes(),
        vocabulary=VocabularyEntry.of(corpus.vocabulary, corpus.fingerprint),
        layout=layout_of(run, run.division).model_copy(update={"stages": stages}),
        kernels=engine.kernels,
        plugins=run.data.plugins,
        tensors={},
        files={},
        losses={},
        origin=run.continuation.origin(run.settings),
    )
