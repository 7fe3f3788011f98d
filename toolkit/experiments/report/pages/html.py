"""Self-contained HTML pages: the frame, style sheet and figures of all reports."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from toolkit.experiments.report.figures.drawing import draw
from toolkit.experiments.report.figures.pictures import Picture


def html_page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """A complete page, readable on a phone and on paper.

    `style`: CSS of this page, after the shared style sheet; `script`: JavaScript that runs once the page is loaded.
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
