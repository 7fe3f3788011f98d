"""Parts of an HTML page: tables of names and values, and figures."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from toolkit.experiments.report.figures.drawing import draw
from toolkit.experiments.report.figures.pictures import Picture


def pairs_table(pairs: Mapping[str, str]) -> str:
    """Two-column table of names and values as text."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in pairs.items())
    return f'<table class="pairs"><tbody>{rows}</tbody></table>'


@dataclass(frozen=True)
class Figure:
    """A picture and its SVG file."""

    picture: Picture
    svg: bytes

    @classmethod
    def of(cls, picture: Picture) -> "Figure":
        """Draw the picture."""
        return cls(picture, draw(picture, "svg"))

    def html(self) -> str:
        """A self-contained `<figure>`."""
        # An image, since the ids in several SVG files would collide within one page.
        title, source = escape(self.picture.title), f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"
        caption = escape(self.picture.caption)
        return f'<figure><img alt="{title}" src="{source}"><figcaption>{caption}</figcaption></figure>'
