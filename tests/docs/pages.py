"""What the documentation holds: fenced snippets, code in the text, links, headings."""

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Page", "Snippet"]

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """A fenced block: its language, the words after it (`fragment`, `file=NAME`), and its text."""

    page: str
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def prose(self) -> str:
        """The page without its fenced blocks, line numbers kept."""
        return _FENCE.sub(lambda found: "\n" * found.group().count("\n"), self.text)

    def snippets(self, language: str) -> list[Snippet]:
        """The fenced blocks of one language, in order."""
        found = []
        for match in _FENCE.finditer(self.text):
            first, *marks = match.group(1).split() or [""]
            line = self.text.count("\n", 0, match.start()) + 1
            found.append(Snippet(self.name, line, first, tuple(marks), match.group(2)))
        return [snippet for snippet in found if snippet.language == language]

    def code(self) -> list[tuple[str, str]]:
        """Code as (text, what stands around it): spans with their line, and each line of a shell block."""
        lines = self.prose.splitlines()
        spans = [(match.group(1), line) for line in lines for match in _SPAN.finditer(line)]
        commands = [line for snippet in self.snippets("bash") for line in snippet.text.splitlines()]
        return spans + [(line.partition("#")[0].strip(), line) for line in commands]

    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    def anchors(self) -> set[str]:
        """Headings as links name them."""
        titles = (re.sub(r"[`*]", "", title) for title in _HEADING.findall(self.prose))
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


PAGES = [
    Page(path, path.read_text(encoding="utf-8"))
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
]
