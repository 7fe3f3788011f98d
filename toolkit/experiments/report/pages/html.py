"""HTML pages that load nothing: the frame, style sheet and figures that all reports share."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from toolkit.experiments.report.figures.drawing import Shape, draw
from toolkit.experiments.report.figures.pictures import Picture


def html_page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """A whole page, readable on a phone and on paper.

    `style`: of this page, behind the shared style sheet; `script`: JavaScript that runs when the page is there.
    """
    shared = files("toolkit.experiments.report.pages").joinpath("page.css").read_text(encoding="utf-8")
    end = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{shared}{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n{end}</body>\n</html>\n"
    )


def pairs_table(pairs: Mapping[str, str]) -> str:
    """Names and values, as text, in two columns."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in pairs.items())
    return f'<table class="pairs"><tbody>{rows}</tbody></table>'


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
