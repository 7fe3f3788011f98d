"""Settings of a run's data."""

import re
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from toolkit.core.settings import TABLE, Settings, table_or
from toolkit.core.text import counted

_SMALLEST_SHARE = 1e-9
# pydantic's names for the union members, which messages leave out of the key.
_FOLDER, _BLEND = "str", "list[any]"


class BlendEntry(Settings):
    """A corpus of a blend."""

    path: Annotated[str, Field(min_length=1)]
    """Folder of the corpus."""
    weight: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Its share of the rows, relative to the other weights; unset: `weights` says it."""


class BlendWeights(Settings):
    """Weights of the corpora of a blend that follow from their sizes."""

    temperature: Annotated[float, Field(ge=0, le=1)]
    """Exponent t: a corpus of n tokens has weight n^t. 1: rows in proportion to tokens; 0: equal rows."""


class DataSettings(Settings):
    """Source of a run's rows, and how they are cut and ordered."""

    train: Annotated[
        Annotated[str, Field(min_length=1), Tag(_FOLDER)]
        | Annotated[tuple[BlendEntry, ...], Field(strict=False), Tag(_BLEND)],
        # The member that the value is meant to be, so that messages are about that one.
        Discriminator(lambda value: _BLEND if isinstance(value, list | tuple) else _FOLDER),
    ]
    """Folder of the training corpus, or a blend: a list of {path, weight}."""
    weights: BlendWeights | None = None
    """A table; unset: each corpus of a blend has its own weight."""
    validation: (
        Annotated[
            Annotated[str, Field(min_length=1), Tag(_FOLDER)]
            | Annotated[dict[str, Annotated[str, Field(min_length=1)]], Tag(TABLE)],
            table_or(_FOLDER),
        ]
        | None
    ) = None
    """Folder of the validation corpus, or a table of names to folders. Unset: no evaluation."""
    sequence_length: Annotated[int, Field(ge=2, le=2**20)] = 2048
    """S, positions in a row."""
    windows: Literal["documents", "random-cut", "blocks"] = "documents"
    """How rows are formed: document pieces packed by best fit; S tokens of the stream, cut once at random; or S tokens
    uncut."""
    min_length: Annotated[int, Field(ge=1)] = 12
    """Minimum segment length: shorter document pieces are dropped, random cuts stay this far from both ends. Not used
    by `blocks`."""
    shuffle: Literal["global", "blocks"] = "global"
    """Shuffle all rows, or blocks of rows, then rows within a window of blocks."""

    @field_validator("train")
    @classmethod
    def _every_corpus_has_a_share(cls, train: str | tuple[BlendEntry, ...]) -> str | tuple[BlendEntry, ...]:
        if isinstance(train, str):
            return train
        if not train:
            raise ValueError("a blend needs a corpus: give a folder, or a list of {path, weight}")
        weights = {entry.path: entry.weight for entry in train if entry.weight is not None}
        total = sum(weights.values())
        for path, weight in weights.items():
            if weight < total * _SMALLEST_SHARE:
                raise ValueError(
                    f"{path} has a weight of {weight:g} in {total:g}, less than one row in "
                    f"{1 / _SMALLEST_SHARE:,.0f}: leave that corpus out, or make its weight larger"
                )
        return train

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        entries = () if isinstance(self.train, str) else self.train
        without = [entry.path for entry in entries if entry.weight is None]
        if self.weights is None and without:
            raise ValueError(
                f"{without[0]} has no weight in data.train. Give each corpus of the blend one, or set "
                "data.weights.temperature, by which weights follow from the numbers of tokens."
            )
        if self.weights is not None and not without:
            raise ValueError(
                "data.weights is for corpora of a blend without weights: give data.train a list of {path}, or leave "
                "data.weights out."
            )
        if self.weights is not None and len(without) < len(entries):
            raise ValueError("data.weights gives every corpus of the blend its weight. Leave weight out of data.train.")
        segments = {"documents": 1, "random-cut": 2, "blocks": 0}[self.windows]
        if segments * self.min_length > self.sequence_length:
            raise ValueError(
                f"rows of data.sequence_length={self.sequence_length} have no room for "
                f"{counted(segments, 'segment')} of at least data.min_length={self.min_length} "
                f"(data.windows={self.windows!r}). Make the rows longer or data.min_length smaller."
            )
        return self

    @field_validator("validation")
    @classmethod
    def _names_are_plain(cls, validation: str | dict[str, str] | None) -> str | dict[str, str] | None:
        if validation == {}:
            raise ValueError("a table needs a corpus: give a folder, or NAME = folder")
        for name in validation if isinstance(validation, dict) else ():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise ValueError(f"{name!r} cannot name a corpus: use letters, digits, - and _")
        return validation

    def weight_of(self, entry: BlendEntry, num_tokens: int) -> float:
        """Weight of a corpus of the blend; six digits if by temperature, since the last ones depend on the machine."""
        if self.weights is not None:
            return float(f"{num_tokens**self.weights.temperature:.6g}")
        assert entry.weight is not None
        return entry.weight

    @property
    def validation_folders(self) -> dict[str, str]:
        """Folders of the validation corpora, by name; a single folder has an empty name."""
        given = self.validation or {}
        return given if isinstance(given, dict) else {"": given}
