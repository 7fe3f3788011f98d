"""Quickstart corpora: Wikipedia text shipped with the package, made into shards if they are missing."""

from pathlib import Path

from toolkit.core.errors import SettingsError
from toolkit.core.locks import locked_file
from toolkit.data import CORPUS_MANIFEST, DataSettings
from toolkit.run.load import preset_data

QUICKSTART_DATA = Path(__file__).resolve().parent.parent / "quickstart"
_SPLITS = {"train": "wikipedia-train.parquet", "validation": "wikipedia-validation.parquet"}


def prepare_bundled_corpus(data: DataSettings) -> None:
    """Make the corpora of a quickstart run if they are missing. Ranks may call it at the same time."""
    for split in _SPLITS:
        folder = getattr(data, split)
        assert isinstance(folder, str)
        _make(split, Path(folder))


def prepare_if_named(data: DataSettings) -> None:
    """Make the missing bundled corpora if these settings name one by its folder in the quickstart preset.

    Makes both, the training corpus first: the other one is inside its folder.
    """
    shipped = preset_data("quickstart")
    if data.train == shipped.train or shipped.validation in data.validation_folders.values():
        prepare_bundled_corpus(shipped)


def _make(split: str, target: Path) -> None:
    # Imported here: runs with other corpora do not need what preprocessing loads.
    from toolkit.preprocess.program import preprocess
    from toolkit.preprocess.settings import PreprocessSettings

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{target.parent} cannot be made: {error.strerror}. Start in a folder that can be written."
        ) from None
    with locked_file(target.parent / f".{target.name}.lock"):
        if not (target / CORPUS_MANIFEST).exists():
            settings = PreprocessSettings(tokenizer=str(QUICKSTART_DATA / "tokenizer"))
            preprocess([str(QUICKSTART_DATA / _SPLITS[split])], target, settings=settings)
