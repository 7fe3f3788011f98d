"""The contract, over every objective that is registered."""

from typing import Any

import pytest

from toolkit.objectives.registry import KINDS
from toolkit.testing.contracts import ObjectiveContract

_SPLIT = {"mask_fraction": 0.5, "random_fraction": 0.3, "keep_fraction": 0.2}
_RAMP = {"mask_ratio": {"start": 0.5, "stop": 0.1, "shape": "cosine"}, "min_targets": 3, **_SPLIT}
_OTHERWISE: dict[str, tuple[str, dict[str, Any]]] = {
    "mlm with a split": ("mlm", {"mask_ratio": 0.9, **_SPLIT}),
    "mlm that hides everything": ("mlm", {"mask_ratio": 1.0}),
    "mlm with a ramp and fewest targets": ("mlm", _RAMP),
    "mlm of words with a ramp and fewest targets": ("mlm", {**_RAMP, "unit": "word"}),
    "mlm of words": ("mlm", {"unit": "word"}),
    "mntp with a split and fewest targets": ("mntp", {"min_targets": 3, **_SPLIT}),
    "mntp that hides everything": ("mntp", {"mask_ratio": 1.0}),
    "mntp of words": ("mntp", {"unit": "word"}),
    "span with a ramp and a split": (
        "span",
        {"mask_ratio": {"start": 0.9, "stop": 0.3}, "geometric_p": 0.5, "max_length": 3, **_SPLIT},
    ),
    "span with fewest targets": ("span", {"mask_ratio": 0.15, "min_targets": 3}),
    "span that hides everything": ("span", {"mask_ratio": 1.0, "geometric_p": 1.0}),
    "span of words": ("span", {"unit": "word"}),
    "diffusion of high ratios": ("diffusion", {"min_ratio": 0.5}),
}
"""What each does with other settings than its own."""


class TestEveryRegisteredKind(ObjectiveContract):
    @pytest.fixture(params=[*KINDS.known(), *_OTHERWISE], autouse=True)
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.kind, self.settings = _OTHERWISE.get(request.param, (request.param, {}))


def test_ours_are_registered() -> None:
    assert {"clm", "diffusion", "mlm", "mntp", "span"} <= set(KINDS.known())
