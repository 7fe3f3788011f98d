"""The bundled corpus: Wikipedia text that travels with the package, made into shards where it is missing."""

from pathlib import Path

from filelock import FileLock

from toolkit.core.errors import SettingsError
from toolkit.settings.run import RunSettings

__all__ = ["QUICKSTART_DATA", "prepare_bundled_corpus"]

QUICKSTART_DATA = Path(__file__).resolve().parent.parent / "quickstart"
_SPLITS = {"train": "wikipedia-train.parquet", "validation": "wikipedia-validation.parquet"}


def prepare_bundled_corpus(settings: RunSettings) -> None:
    """Make the corpora that the quickstart preset reads, where they are missing. Ranks may call it at the same time.

    Args:
        settings: of a run from the quickstart preset; corpora that the user replaced by others are left alone.
    """
    from toolkit.data.manifest import MANIFEST_NAME
    from toolkit.preprocess import PreprocessSettings, preprocess

    how = PreprocessSettings(tokenizer=str(QUICKSTART_DATA / "tokenizer"))
    folders = {"train": settings.data.train, "validation": settings.data.validation}
    for split, folder in folders.items():
        if not isinstance(folder, str):
            continue
        target = Path(folder)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"{target.parent} cannot be made: {error.strerror}.") from None
        with FileLock(target.parent / f".{target.name}.lock"):
            if not (target / MANIFEST_NAME).exists():
                preprocess([str(QUICKSTART_DATA / _SPLITS[split])], target, settings=how)
