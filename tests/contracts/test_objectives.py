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


def test_clm_and_mlm_are_registered() -> None:
    assert {"clm", "mlm"} <= set(known())
