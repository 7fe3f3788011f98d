"""Names of models on the hub, and what happens on the way from there."""

from pathlib import Path

import huggingface_hub
import pytest

from toolkit.conversion import from_hf
from toolkit.core.errors import UserError


class ReadTimeout(Exception):
    """As the HTTP library under the hub's client has one, in a family of its own."""


@pytest.mark.parametrize("name", ["org/a--b", "org/a..b", f"org/{'a' * 100}", "org", ""])
def test_a_name_that_the_hub_does_not_allow_is_no_bug(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}' is not a directory, and not the name of a model on the hub"):
        from_hf(name, tmp_path / "out")


def test_a_connection_that_breaks_off_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> str:
        raise ReadTimeout("The read operation timed out")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(UserError, match=r"failed \(The read operation timed out\)\. Check the network"):
        from_hf("org/any", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
