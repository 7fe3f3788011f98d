"""How Sphinx makes the site of these pages: `make docs`."""

import re
from typing import Any

project = "Encoder pretraining toolkit"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["site"]

# Links to headings are GitHub's.
myst_heading_anchors = 6
highlight_language = "text"
# Docstrings have code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_display_short_literal_types = True
# Lines of a log and excerpts are no whole JSON.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
templates_path = ["."]
html_sidebars = {"**": ["navigation.html"]}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navbar_center": [],
    "navbar_end": ["theme-switcher"],
    "article_header_start": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "footer_start": [],
    "footer_end": [],
}


def sections(index: str) -> dict[str, list[tuple[str, str]]]:
    """Pages by section, as (title, path without .md); index.md lists them in tables: `| [title](page.md) | about |`."""
    found = {}
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        if pages := re.findall(r"^\| \[([^\]]+)\]\(([^)#]+)\.md\) \|", body, re.MULTILINE):
            found[heading] = pages
    return found


def _as_on_github(_app: Any, docname: str, source: list[str]) -> None:
    """What GitHub shows without more, said in Sphinx's words.

    The tables of index.md are the toctree: one of its own would be noise there. Markdown outside of this folder, which
    is no page of the site, is handed out as a file.
    """
    if docname == "index":
        for heading, pages in sections(source[0]).items():
            entries = [f"{title} <{page}>" for title, page in pages]
            source[0] += "\n".join(["\n```{toctree}", ":hidden:", f":caption: {heading}", "", *entries, "```\n"])
    if "/" not in docname:
        source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)]+\.md)\)", r"{download}`\1 <\2>`", source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _as_on_github)
