"""The registry: packages installed for real, and what happens when they are broken."""

import sys
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.support.forked import run_python
from tests.support.packages import lay_down_entry_points
from toolkit.core.errors import SettingsError
from toolkit.objectives import AttentionKind, Draws, Vocabulary, build, get, register, registry
from toolkit.objectives.registry import declare

VOCABULARY = Vocabulary(size=100, mask_id=4, pad_id=2, bos_id=1, eos_id=2, special_ids=(1, 2))

PLUGIN = '''
"""An objective from outside, in one file."""

import numpy as np
from pydantic import BaseModel

from toolkit.objectives import AttentionKind, Settings, Targets


class EveryNthSettings(Settings):
    every: int = 2
    """Distance between two targets."""


class EveryNth:
    """Ask for every n-th token of the row."""

    name = "every-nth"
    attention = AttentionKind.BIDIRECTIONAL
    Settings = EveryNthSettings

    def __init__(self, settings, vocabulary):
        self.every, self.mask_id = settings.every, vocabulary.mask_id

    def build(self, tokens_BS, segments_BS, draws):
        chosen_BS = (segments_BS != 0) & (np.arange(tokens_BS.shape[1]) % self.every == 0)
        positions_N = np.flatnonzero(chosen_BS)
        return Targets(
            input_ids_BS=np.where(chosen_BS, self.mask_id, tokens_BS),
            positions_N=positions_N,
            labels_N=tokens_BS.reshape(-1)[positions_N],
        )
'''


def _install(folder: Path, package: str, *, source: str, points: dict[str, str]) -> None:
    """Lay a package down as an installer does: a module and its metadata."""
    (folder / f"{package}.py").write_text(source)
    lay_down_entry_points(folder, package, {"toolkit.objectives": points})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages can be installed into, on sys.path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What a test registers is gone after it."""
    with mock.patch.dict(registry.KINDS.registered, clear=True):
        yield


def test_a_plugin_is_found_and_used(site: Path) -> None:
    _install(site, "plugin_good", source=PLUGIN, points={"every-nth": "plugin_good:EveryNth"})
    assert "every-nth" in registry.KINDS.known()
    objective = build("every-nth", {"every": 3}, VOCABULARY)
    tokens_BS = np.array([[10, 11, 12, 13, 14, 2, 2]])
    segments_BS = np.array([[1, 1, 1, 1, 1, 1, 0]])
    targets = objective.build(tokens_BS, segments_BS, Draws(0, np.arange(1), num_columns=7))
    assert targets.positions_N.tolist() == [0, 3]
    assert targets.labels_N.tolist() == [10, 13]
    assert targets.input_ids_BS.tolist() == [[4, 11, 12, 4, 14, 2, 2]]


def test_a_plugin_passes_the_contract_suite_from_its_own_tests(tmp_path: Path) -> None:
    """In a process of its own, as the plugin's author would run it."""
    _install(tmp_path, "plugin_tested", source=PLUGIN, points={"every-nth": "plugin_tested:EveryNth"})
    (tmp_path / "test_plugin.py").write_text(
        textwrap.dedent(
            """
            from toolkit.testing.contracts import ObjectiveContract

            class TestEveryNth(ObjectiveContract):
                kind = "every-nth"
            """
        )
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ended = run_python(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_plugin.py"], folder=tmp_path)
    assert ended.code == 0, ended.output
    assert "9 passed" in ended.output


def test_a_broken_plugin_hurts_nobody_who_does_not_use_it(site: Path) -> None:
    _install(site, "plugin_bad", source="raise RuntimeError('at import')\n", points={"bad": "plugin_bad:Bad"})
    assert {"bad", "clm", "mlm"} <= set(registry.KINDS.known())
    assert build("mlm", {}, VOCABULARY).name == "mlm"
    assert "plugin_bad" not in sys.modules


_MISSING = "import no_such_module\n"
_IS_MISSING = "(.|\n)*ModuleNotFoundError: No module named 'no_such_module'"
_HALF = "class Half:\n    name = 'half'\n    attention = 'causal'\n"
_LACKS = r"(?=(.|\n)*`attention` is not)(?=(.|\n)*`Settings` is not)(?=(.|\n)*`build` is missing)"


@pytest.mark.parametrize(
    ("kind", "target", "source", "packages", "message"),
    [
        ("broken", "Broken", _MISSING, ["bad"], rf"'broken' comes from package bad 1\.5 \(bad:Broken\){_IS_MISSING}"),
        ("empty", "Missing", "", ["plugin_empty"], r"plugin_empty 1\.5 .*AttributeError"),
        ("half", "Half", _HALF, ["plugin_half"], rf"{_LACKS}(.|\n)*plugin_half 1\.5"),
        ("every-nth", "EveryNth", PLUGIN, ["plugin_one", "plugin_two"], r"plugin_one 1\.5 .* and .*plugin_two 1\.5"),
        ("mlm", "EveryNth", PLUGIN, ["plugin_thief"], r"encoder-pretraining-toolkit .* and .*plugin_thief 1\.5"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named(
    site: Path, kind: str, target: str, source: str, packages: list[str], message: str
) -> None:
    for package in packages:
        _install(site, package, source=source, points={kind: f"{package}:{target}"})
    with pytest.raises(SettingsError, match=message) as caught:
        get(kind)
    assert caught.value.exit_code == 2


def test_a_plugin_may_also_register_itself(site: Path) -> None:
    source = PLUGIN + "\nfrom toolkit.objectives import register\nregister(EveryNth)\n"
    _install(site, "plugin_twice", source=source, points={"every-nth": "plugin_twice:EveryNth"})
    assert get("every-nth") is get("every-nth")


def test_register_makes_a_class_known_in_this_process() -> None:
    namespace: dict[str, object] = {"__name__": "here"}
    exec(PLUGIN, namespace)
    every_nth = namespace["EveryNth"]
    assert isinstance(every_nth, type)
    assert register(every_nth) is every_nth
    assert get("every-nth") is every_nth
    assert "every-nth" in registry.KINDS.known()


def test_register_refuses_a_taken_name() -> None:
    impostor = type("Impostor", (get("mlm"),), {})
    with pytest.raises(SettingsError, match=r"'mlm' is already taken by toolkit\.objectives\.mlm"):
        register(impostor)


def test_an_unknown_kind_gets_a_suggestion() -> None:
    with pytest.raises(
        SettingsError, match=r"unknown objective kind 'mln'\. Did you mean 'mlm'\? Available kinds: clm, diffusion, mlm"
    ):
        get("mln")


@pytest.mark.parametrize("kind", ["clm", "mlm", "mntp", "span", "diffusion"])
def test_who_looks_both_ways_and_needs_a_mask_token(kind: str) -> None:
    is_causal = kind == "clm"
    assert build(kind, {}, VOCABULARY).attention is (AttentionKind.CAUSAL if is_causal else AttentionKind.BIDIRECTIONAL)
    instead = r"\.$" if kind == "diffusion" else r", or set mask_fraction to 0"
    said = rf"the objective {kind} replaces 100% of its targets with a mask token.*\(or id:N\){instead}"
    with nullcontext() if is_causal else pytest.raises(SettingsError, match=said):
        build(kind, {}, replace(VOCABULARY, mask_id=None))


def test_an_unknown_setting_gets_a_suggestion() -> None:
    with pytest.raises(SettingsError, match=r"unknown key 'objectives\.hard\.mask_ration'\. Did you mean 'mask_ratio'"):
        declare("hard", {"kind": "mlm", "mask_ration": 0.3})


def test_every_wrong_setting_is_listed_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        build("mlm", {"mask_ratio": 2, "keep_fraction": -1}, VOCABULARY)
    assert len(str(caught.value).splitlines()) == 2
