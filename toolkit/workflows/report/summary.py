"""Summary of the report for the terminal."""

from statistics import fmean
from typing import TYPE_CHECKING

from toolkit.workflows.report.curves import final_loss
from toolkit.workflows.report.facts import Facts
from toolkit.workflows.report.page import duration

if TYPE_CHECKING:
    from rich.console import Group


def summary(facts: Facts) -> "Group":
    """Times of all stages, and the results."""
    from rich.console import Group
    from rich.table import Table

    times = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    times.add_column("stage", overflow="fold")
    times.add_column("time", justify="right", no_wrap=True)
    times.add_column("CPU time", justify="right", no_wrap=True)
    for stage in facts.stages:
        times.add_row(stage.title, duration(stage.record.seconds), duration(stage.record.cpu_seconds))
    times.add_row("total", duration(facts.seconds), duration(facts.cpu_seconds), style="bold")

    results = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, show_header=False)
    results.add_column(no_wrap=True)
    results.add_column(justify="right", style="bold")
    results.add_column(overflow="fold")
    for row in _results(facts):
        results.add_row(*row)
    return Group(times, "", results, "")


def _results(facts: Facts) -> list[tuple[str, str, str]]:
    test, twins = facts.result.test[facts.result.metric], [twin.test[twin.metric] for twin in facts.twins]
    level, start = facts.unigram_loss["mlm"], facts.metrics[0]["eval_loss"]["mlm"]
    rows = [
        (
            "held-out MLM loss",
            f"{final_loss(facts.metrics, 'mlm'):.2f}",
            f"before training {start:.2f}, unigram baseline {level:.2f}",
        ),
        (
            f"test {facts.result.metric}",
            f"{test:.1%}",
            f"{len(twins)} random twins {fmean(twins):.1%}, most frequent label {facts.result.majority:.1%}",
        ),
    ]
    if facts.mlm_only is not None:
        rows.insert(1, ("  with MLM only", f"{final_loss(facts.mlm_only, 'mlm'):.2f}", "same steps, same data"))
    return rows
