"""HTML pages that load nothing: the frame and style sheet that all reports share."""

from collections.abc import Mapping
from html import escape
from importlib.resources import files


def html_page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """A whole page, readable on a phone and on paper.

    `style`: of this page, behind the shared style sheet; `script`: JavaScript that runs when the page is there.
    """
    shared = files("toolkit.report.pages").joinpath("page.css").read_text(encoding="utf-8")
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
