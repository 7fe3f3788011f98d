"""The contract, over every objective that is registered."""

from typing import ClassVar

import pytest

from toolkit.objectives import known
from toolkit.testing.contracts import ObjectiveContract


class TestEveryRegisteredKind(ObjectiveContract):
    @pytest.fixture(params=known(), autouse=True)
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.kind = request.param


class TestMlmWithSplit(ObjectiveContract):
    kind = "mlm"
    settings: ClassVar = {"mask_ratio": 0.9, "mask_fraction": 0.5, "random_fraction": 0.3, "keep_fraction": 0.2}


class TestMlmHidingEverything(ObjectiveContract):
    kind = "mlm"
    settings: ClassVar = {"mask_ratio": 1.0}


class TestMlmWithRampAndFewestTargets(ObjectiveContract):
    kind = "mlm"
    settings: ClassVar = {
        "mask_ratio": {"start": 0.5, "stop": 0.1, "shape": "cosine"},
        "min_targets": 3,
        "mask_fraction": 0.5,
        "random_fraction": 0.3,
        "keep_fraction": 0.2,
    }


class TestMntpWithSplitAndFewestTargets(ObjectiveContract):
    kind = "mntp"
    settings: ClassVar = {"min_targets": 3, "mask_fraction": 0.5, "random_fraction": 0.3, "keep_fraction": 0.2}


class TestMntpHidingEverything(ObjectiveContract):
    kind = "mntp"
    settings: ClassVar = {"mask_ratio": 1.0}


class TestSpanWithRampAndSplit(ObjectiveContract):
    kind = "span"
    settings: ClassVar = {
        "mask_ratio": {"start": 0.9, "stop": 0.3},
        "geometric_p": 0.5,
        "max_length": 3,
        "mask_fraction": 0.5,
        "random_fraction": 0.3,
        "keep_fraction": 0.2,
    }


class TestSpanWithFewestTargets(ObjectiveContract):
    kind = "span"
    settings: ClassVar = {"mask_ratio": 0.15, "min_targets": 3}


class TestSpanHidingEverything(ObjectiveContract):
    kind = "span"
    settings: ClassVar = {"mask_ratio": 1.0, "geometric_p": 1.0}


class TestDiffusionOfHighRatios(ObjectiveContract):
    kind = "diffusion"
    settings: ClassVar = {"min_ratio": 0.5}


class TestWholeWords(ObjectiveContract):
    settings: ClassVar = {"unit": "word"}

    @pytest.fixture(params=["mlm", "mntp", "span"], autouse=True)
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.kind = request.param


class TestMlmOfWordsWithRampAndFewestTargets(TestMlmWithRampAndFewestTargets):
    settings: ClassVar = {**TestMlmWithRampAndFewestTargets.settings, "unit": "word"}


def test_ours_are_registered() -> None:
    assert {"clm", "diffusion", "mlm", "mntp", "span"} <= set(known())
