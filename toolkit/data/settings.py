"""What a run says about its data."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from toolkit.core.settings import Settings

__all__ = ["BlendEntry", "DataSettings"]

_SMALLEST_SHARE = 1e-9


class BlendEntry(Settings):
    """One corpus of a blend."""

    path: str
    """Folder of the corpus."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Its share of the rows, relative to the other weights."""


class DataSettings(Settings):
    """Where the rows of a run come from, how they are cut and in which order they come."""

    train: str | Annotated[tuple[BlendEntry, ...], Field(strict=False, min_length=1)]
    """Folder of the training corpus, or a blend: a list of {path, weight}."""
    validation: str | None = Field(None, min_length=1)
    """Folder of the corpus that is evaluated; none: no evaluation."""
    sequence_length: Annotated[int, Field(ge=2)] = 2048
    """S, positions in a row."""
    windows: Literal["documents", "random-cut", "blocks"] = "documents"
    """How rows are made: pieces of documents packed by best fit; the token stream in rows of S, each cut once more at
    a random point; or plain rows of S."""
    min_length: Annotated[int, Field(ge=1)] = 12
    """The shortest segment: shorter pieces of documents are dropped, random cuts keep this far from both ends.
    `blocks` does not use it."""
    shuffle: Literal["global", "blocks"] = "global"
    """Shuffle rows over the whole corpus, or blocks of rows and then rows inside a window of blocks."""

    @model_validator(mode="after")
    def _every_corpus_has_a_share(self) -> Self:
        entries = () if isinstance(self.train, str) else self.train
        total = sum(entry.weight for entry in entries)
        for entry in entries:
            if entry.weight < total * _SMALLEST_SHARE:
                raise ValueError(
                    f"data.train gives {entry.path} a weight of {entry.weight:g} in {total:g}, less than one row in "
                    f"{1 / _SMALLEST_SHARE:,.0f}. Leave that corpus out, or make its weight larger."
                )
        return self

    @model_validator(mode="after")
    def _row_holds_its_segments(self) -> Self:
        segments = {"documents": 1, "random-cut": 2, "blocks": 0}[self.windows]
        if segments * self.min_length > self.sequence_length:
            raise ValueError(
                f"rows of data.sequence_length={self.sequence_length} have no room for {segments} segment(s) of at "
                f"least data.min_length={self.min_length} (data.windows={self.windows!r}). "
                "Make the rows longer or data.min_length smaller."
            )
        return self
