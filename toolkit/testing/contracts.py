"""Contracts of objectives and schedulers, as tests that run on any of them.

A package that adds one tests it like this:

    from toolkit.testing.contracts import ObjectiveContract, SchedulerContract

    class TestMine(ObjectiveContract):
        kind = "mine"
        settings = {"ratio": 0.3}

    class TestMyScheduler(SchedulerContract):
        kind = "mine"
        settings = {"rounds": 4}
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pydantic

from toolkit.core.types import BoolArray
from toolkit.objectives import (
    AttentionKind,
    Draws,
    IntArray,
    Objective,
    PhaseSettings,
    Targets,
    Vocabulary,
    WordBoundaries,
    build,
    get,
)
from toolkit.objectives.base import at_progress
from toolkit.objectives.schedule import Schedule
from toolkit.objectives.schedulers import KINDS, declare

_PAD, _BOS, _MASK = 2, 1, 4

_IDS = np.arange(50)

CONTRACT_VOCABULARY = Vocabulary(
    size=50,
    mask_id=_MASK,
    pad_id=_PAD,
    bos_id=_BOS,
    eos_id=_PAD,
    special_ids=(_BOS, _MASK),
    words=lambda: WordBoundaries(begins_V=_IDS % 3 == 1, ends_V=np.isin(_IDS % 7, (_BOS, _MASK))),
)
"""Its pad is its end-of-text and not declared special, as in the recipe: only the segment identifies padding."""


def contract_rows() -> tuple[IntArray, IntArray]:
    """Rows with edge cases, as (tokens, segments): read-only, (6, 16).

    A full row of one segment; several segments and padding; segments of one token; the end-of-text inside a segment
    and before padding; only special tokens; only padding.
    """
    tokens_BS = np.arange(6 * 16, dtype=np.int32).reshape(6, 16) % 45 + 5
    segments_BS = np.zeros((6, 16), dtype=np.int32)
    segments_BS[0] = 1
    segments_BS[1] = [1] * 5 + [2] * 4 + [3] * 4 + [0] * 3
    segments_BS[2] = range(1, 17)
    segments_BS[3] = [1] * 8 + [2] * 6 + [0] * 2
    segments_BS[4] = [1] * 16
    tokens_BS[3, [0, 8]] = _BOS
    tokens_BS[3, [4, 7, 13]] = _PAD
    tokens_BS[4] = _PAD
    tokens_BS[segments_BS == 0] = _PAD
    tokens_BS.flags.writeable = False
    segments_BS.flags.writeable = False
    return tokens_BS, segments_BS


def _draws(positions: list[int] | range, *, seed: int = 3) -> Draws:
    return Draws(seed, np.array(positions, dtype=np.int64), num_columns=16)


def _assert_equal(left: Targets, right: Targets) -> None:
    np.testing.assert_array_equal(left.input_ids_BS, right.input_ids_BS)
    np.testing.assert_array_equal(left.positions_N, right.positions_N)
    np.testing.assert_array_equal(left.labels_N, right.labels_N)
    assert (left.weights_N is None) == (right.weights_N is None)
    if left.weights_N is not None and right.weights_N is not None:
        np.testing.assert_array_equal(left.weights_N, right.weights_N)


def _part(targets: Targets, is_part_T: BoolArray) -> Targets:
    """The targets of the flagged positions, in flat arrays; positions are relative to the part."""
    is_part_N = is_part_T[targets.positions_N]
    return Targets(
        input_ids_BS=targets.input_ids_BS.reshape(-1)[is_part_T],
        positions_N=(np.cumsum(is_part_T) - 1)[targets.positions_N[is_part_N]],
        labels_N=targets.labels_N[is_part_N],
        weights_N=None if targets.weights_N is None else targets.weights_N[is_part_N],
    )


def _assert_settings_are_sound(settings_class: type[pydantic.BaseModel], settings: Mapping[str, Any]) -> None:
    assert settings_class.model_config.get("frozen")
    assert settings_class.model_config.get("extra") == "forbid"
    unexplained = [name for name, field in settings_class.model_fields.items() if not field.description]
    assert unexplained == []
    try:
        settings_class.model_validate({**settings, "no_such_setting": 1})
    except pydantic.ValidationError:
        return
    raise AssertionError("an unknown setting was taken")


class ObjectiveContract:
    """Tests that every objective has to pass; subclass it and name the kind."""

    kind: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}

    def make(self, vocabulary: Vocabulary = CONTRACT_VOCABULARY) -> Objective:
        """A fresh objective of the kind."""
        return build(self.kind, self.settings, vocabulary)

    def test_it_names_itself_and_its_attention(self) -> None:
        """Logs and errors refer to it by its kind."""
        objective = self.make()
        assert objective.name == self.kind
        assert isinstance(objective.attention, AttentionKind)
        assert get(self.kind).__doc__

    def test_settings_are_frozen_closed_and_explained(self) -> None:
        """A misspelled key must not pass silently, and --help has to say what a key means."""
        _assert_settings_are_sound(get(self.kind).Settings, self.settings)

    def test_shapes_and_ranges(self) -> None:
        """Inputs keep their shape; targets are ascending and unique; every id is in the vocabulary."""
        tokens_BS, segments_BS = contract_rows()
        targets = self.make().build(tokens_BS, segments_BS, _draws(range(6)))
        assert targets.input_ids_BS.shape == tokens_BS.shape
        assert targets.positions_N.ndim == targets.labels_N.ndim == 1
        assert len(targets.positions_N) == len(targets.labels_N)
        for array in (targets.input_ids_BS, targets.positions_N, targets.labels_N):
            assert np.issubdtype(array.dtype, np.integer)
        assert (np.diff(targets.positions_N) > 0).all()
        assert ((targets.positions_N >= 0) & (targets.positions_N < tokens_BS.size)).all()
        for ids in (targets.labels_N, targets.input_ids_BS):
            assert ((ids >= 0) & (ids < CONTRACT_VOCABULARY.size)).all()
        if (weights_N := targets.weights_N) is not None:
            assert weights_N.dtype == np.float32
            assert weights_N.shape == targets.labels_N.shape
            assert (np.isfinite(weights_N) & (weights_N >= 0)).all()

    def test_padding_is_left_alone(self) -> None:
        """No target on padding, which its segment identifies; a row without tokens has no targets."""
        tokens_BS, segments_BS = contract_rows()
        targets = self.make().build(tokens_BS, segments_BS, _draws(range(6)))
        assert (segments_BS.reshape(-1)[targets.positions_N] != 0).all()
        is_pad_BS = segments_BS == 0
        np.testing.assert_array_equal(targets.input_ids_BS[is_pad_BS], tokens_BS[is_pad_BS])
        nothing = self.make().build(tokens_BS[5:], segments_BS[5:], _draws([5]))
        assert len(nothing.positions_N) == len(nothing.labels_N) == 0

    def test_it_is_pure(self) -> None:
        """Equal arguments give equal results for every caller, and the arguments are not modified."""
        tokens_BS, segments_BS = contract_rows()  # Read-only: writing to them raises.
        objective = self.make()
        state_before = str(np.random.get_state())
        first = objective.build(tokens_BS, segments_BS, _draws(range(6)))
        assert str(np.random.get_state()) == state_before, "it used numpy's global generator"
        objective.build(tokens_BS[:2], segments_BS[:2], _draws([8, 9]))
        _assert_equal(first, objective.build(tokens_BS, segments_BS, _draws(range(6))))
        _assert_equal(first, self.make().build(tokens_BS, segments_BS, _draws(range(6))))

    def test_progress_changes_neither_name_nor_attention(self) -> None:
        """At any progress in the phase it is the same problem, and as pure; the objective itself is not modified."""
        tokens_BS, segments_BS = contract_rows()
        objective = self.make()
        before = objective.build(tokens_BS, segments_BS, _draws(range(6)))
        for progress in (1.0, 0.37, 0.0):
            there = at_progress(objective, progress)
            assert (there.name, there.attention) == (objective.name, objective.attention)
            built = there.build(tokens_BS, segments_BS, _draws(range(6)))
            again = at_progress(self.make(), progress).build(tokens_BS, segments_BS, _draws(range(6)))
            _assert_equal(built, again)
        _assert_equal(before, objective.build(tokens_BS, segments_BS, _draws(range(6))))

    def test_rows_do_not_depend_on_their_micro_batch(self) -> None:
        """Six rows at once, or one by one, or in another order: the same targets."""
        tokens_BS, segments_BS = contract_rows()
        objective = self.make()
        together = objective.build(tokens_BS, segments_BS, _draws(range(6)))
        for row in reversed(range(6)):
            alone = objective.build(tokens_BS[row : row + 1], segments_BS[row : row + 1], _draws([row]))
            is_of_row_T = np.arange(tokens_BS.size) // 16 == row
            _assert_equal(_part(alone, np.ones(16, dtype=bool)), _part(together, is_of_row_T))

    def test_segments_do_not_touch(self) -> None:
        """Changing tokens in one segment changes nothing in the others."""
        tokens_BS, segments_BS = contract_rows()
        objective = self.make()
        before = objective.build(tokens_BS, segments_BS, _draws(range(6)))
        changed_BS = tokens_BS.copy()
        changed_BS[segments_BS == 2] = 49
        after = objective.build(changed_BS, segments_BS, _draws(range(6)))
        elsewhere_T = (segments_BS != 2).reshape(-1)
        _assert_equal(_part(before, elsewhere_T), _part(after, elsewhere_T))

    def test_an_empty_micro_batch_is_legal(self) -> None:
        """No row, no target."""
        empty_BS = np.zeros((0, 16), dtype=np.int32)
        targets = self.make().build(empty_BS, empty_BS, _draws([]))
        assert targets.input_ids_BS.shape == (0, 16)
        assert len(targets.positions_N) == len(targets.labels_N) == 0


class SchedulerContract:
    """Tests that every scheduler has to pass; subclass it and name the kind."""

    kind: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}
    entries: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"objective": "clm", "fraction": 0.25},
        {"objective": "mlm", "fraction": 0.75},
    )
    """Entries of `[[schedule]]`."""
    total_steps: ClassVar[int | None] = 1000
    """Steps of the run."""

    def phases(self) -> list[dict[str, Any]]:
        """Phases that a scheduler of the kind makes from the entries, each valid."""
        scheduler = declare({"kind": self.kind, **self.settings})
        return scheduler.phases([dict(entry) for entry in self.entries], self.total_steps)

    def test_settings_are_frozen_closed_and_explained(self) -> None:
        """A misspelled key must not pass silently, and an error has to say what a key means."""
        _assert_settings_are_sound(KINDS.get(self.kind).Settings, self.settings)

    def test_its_phases_fill_the_run(self) -> None:
        """Phase lengths are consistent with each other and with `train.steps`."""
        schedule = Schedule.resolve(
            [PhaseSettings.model_validate(phase) for phase in self.phases()],
            total_steps=self.total_steps,
            global_batch_rows=1,
            sequence_length=1,
        )
        assert self.total_steps in (None, schedule.total_steps)

    def test_it_is_pure(self) -> None:
        """Equal arguments give equal phases."""
        assert self.phases() == self.phases()
