"""Figures of a page: a picture drawn for a wide and for a narrow window, and its HTML."""

import base64
from dataclasses import dataclass
from html import escape

from toolkit.report.figures.drawing import Shape, draw
from toolkit.report.figures.pictures import Picture


@dataclass(frozen=True)
class Figure:
    """A picture with its SVG files for a wide and for a narrow window."""

    picture: Picture
    wide: bytes
    narrow: bytes

    @classmethod
    def of(cls, picture: Picture) -> "Figure":
        """Draw both."""
        return cls(picture, draw(picture, "svg"), draw(picture, "svg", Shape.NARROW))

    def html(self) -> str:
        """A `<figure>` that loads nothing; the style sheet shows one of the two files."""
        # As images, since the ids in two files would collide within one page.
        images = "".join(
            f'<div class="{css}"><img alt="{escape(self.picture.title)}" src="data:image/svg+xml;base64,'
            f'{base64.b64encode(svg).decode()}"></div>'
            for css, svg in (("wide", self.wide), ("narrow", self.narrow))
        )
        return f"<figure>{images}<figcaption>{escape(self.picture.caption)}</figcaption></figure>"
