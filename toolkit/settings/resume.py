"""Which settings may change when a run is resumed, and the refusal of all others."""

from collections.abc import Mapping
from typing import Any

from toolkit.core.errors import CorpusError, SettingsError
from toolkit.settings.run import RunSettings

__all__ = ["check_corpora", "check_resume", "snapshot"]

_FREE = ("parallel.", "train.micro_batch_rows", "train.compile", "checkpoint.", "log.", "eval.", "run.dir")


def snapshot(settings: RunSettings) -> dict[str, Any]:
    """The settings as plain data, for the checkpoint's manifest."""
    return settings.model_dump(mode="json")


def check_resume(saved: dict[str, Any], settings: RunSettings) -> None:
    """Refuse to go on with settings that would make another run of it.

    Raises:
        SettingsError: naming every key that differs, with both values.
    """
    before, now = _flat(saved), _flat(snapshot(settings))
    changed = [
        f"  {key}: was {_shown(before, key)}, now {_shown(now, key)}"
        for key in sorted(before.keys() | now.keys())
        if not key.startswith(_FREE) and before.get(key) != now.get(key)
    ]
    if changed:
        raise SettingsError(
            f"the run in {settings.run.dir} was started with other settings:\n" + "\n".join(changed) + "\n"
            "Resume with the same ones, or give the new run its own run.dir. "
            "(`toolkit branch`, which starts another schedule or other data from a step of a run, "
            "is not available yet.)"
        )


def check_corpora(saved: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse to go on where another corpus lies in the place of the one that the run has read so far.

    Raises:
        CorpusError: naming the setting that names the corpus.
    """
    for key, manifest_hash in saved.items():
        if found.get(key) != manifest_hash:
            raise CorpusError(
                f"{key} names another corpus than when the run was started: its corpus.json has SHA-256 "
                f"{found.get(key)}, and the checkpoint was trained on {manifest_hash}.\n"
                "Put the corpus back, or give the new run its own run.dir."
            )


def _shown(settings: dict[str, Any], key: str) -> str:
    return "not set" if settings.get(key) is None else repr(settings[key])


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return {prefix.removesuffix("."): value}
    return {key: leaf for name, part in items for key, leaf in _flat(part, f"{prefix}{name}.").items()}
