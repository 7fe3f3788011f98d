"""docs/performance.md is the page of the kept results, and nothing was written into it by hand."""

from runpy import run_path

from tests.support.sources import ROOT


def test_the_page_is_that_of_the_kept_results(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    written = run_path(str(ROOT / "benchmarks" / "performance.py"))
    assert (ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == written["page"]()
