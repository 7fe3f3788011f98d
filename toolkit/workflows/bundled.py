"""The bundled corpus: Wikipedia text that travels with the package, made into shards where it is missing."""

from pathlib import Path

from filelock import FileLock

from toolkit.core.errors import SettingsError
from toolkit.data import MANIFEST_NAME
from toolkit.run import load_run
from toolkit.run.settings import RunSettings

QUICKSTART_DATA = Path(__file__).resolve().parent.parent / "quickstart"
_SPLITS = {"train": "wikipedia-train.parquet", "validation": "wikipedia-validation.parquet"}


def prepare_bundled_corpus(settings: RunSettings) -> None:
    """Make the corpora of a quickstart run, where they are missing. Ranks may call it at the same time."""
    for split in _SPLITS:
        folder = getattr(settings.data, split)
        assert isinstance(folder, str)
        _make(split, Path(folder))


def prepare_if_named(settings: RunSettings) -> None:
    """Make the bundled corpora, where missing, if these settings name one by its folder of the quickstart preset.

    Both, and the training corpus first: the other lies inside its folder.
    """
    shipped = load_run("quickstart")
    if any(getattr(settings.data, split) == getattr(shipped.data, split) for split in _SPLITS):
        prepare_bundled_corpus(shipped)


def _make(split: str, target: Path) -> None:
    from toolkit.preprocess import PreprocessSettings, preprocess

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{target.parent} cannot be made: {error.strerror}. Start in a folder that can be written."
        ) from None
    with FileLock(target.parent / f".{target.name}.lock"):
        if not (target / MANIFEST_NAME).exists():
            settings = PreprocessSettings(tokenizer=str(QUICKSTART_DATA / "tokenizer"))
            preprocess([str(QUICKSTART_DATA / _SPLITS[split])], target, settings=settings)
