"""The sections about pretraining: losses across the switch, and the run without CLM beside it."""

from html import escape
from pathlib import Path

from toolkit.report.figures.pictures import loss_picture
from toolkit.report.pages.html import Figure
from toolkit.report.read.runs import curves_of
from toolkit.workflows.quickstart.facts import Facts, Metrics

_LEVEL_LABEL = "unigram baseline"


def loss_section(facts: Facts) -> str:
    """Training and held-out losses over the run, and the held-out ones at each end of a phase."""
    runs = {"CLM, then MLM": facts.metrics} | ({} if facts.mlm_only is None else {"MLM only": facts.mlm_only})
    picture = loss_picture(
        [curves_of(lines, name=name, folder=Path(facts.folder)) for name, lines in runs.items()],
        unigram=facts.unigram_loss,
    )
    assert picture is not None
    return f"""
<h2>One run, two objectives</h2>
<p>The run predicts the <span class="clm-word">next token</span> up to step {facts.phases[0].stop:,}, then
<span class="mlm-word">masked tokens</span> from both sides. Two things change at the switch: the objective, which
builds inputs and targets, and the attention. Weights, optimizer state, learning rate and data order continue. Both
losses are measured throughout, on held-out articles that the run is not trained on.</p>
{Figure.of(picture).html()}
{_phase_table(facts, sorted(facts.unigram_loss))}"""


def comparison_section(facts: Facts) -> str:
    """The held-out loss of the last objective, with and without the phase before it; empty without a comparison."""
    if facts.mlm_only is None:
        return ""
    ours, theirs = final_loss(facts.metrics, "mlm"), final_loss(facts.mlm_only, "mlm")
    lead = theirs - ours
    order = "ends lower" if lead > 0 else "does not end lower"
    return f"""
<h2>Does CLM first help?</h2>
<p>A second run, in the figure above, spent all {facts.phases[-1].stop:,} steps on MLM: same model, same rows in the
same order, same learning rates. In this single comparison the schedule with CLM first {order} on masked tokens of
held-out text: <strong>{ours:.2f}</strong> against <strong>{theirs:.2f}</strong> nats, a difference of
{abs(lead):.2f}.</p>
<p class="fine">One seed, one model of {facts.parameters / 1e6:.1f} million parameters, the first minutes of training: a
CLM step also costs more time than an MLM step, since every position is a target. The paper's own evidence comes from
models up to 1 billion parameters and 100 billion tokens.</p>"""


def final_loss(metrics: Metrics, objective: str) -> float:
    """The last held-out loss of an objective."""
    return float([line["eval_loss"][objective] for line in metrics if "eval_loss" in line][-1])


def _phase_table(facts: Facts, objectives: list[str]) -> str:
    moments: list[tuple[str, int, str | None]] = [("before the first step", 0, None)]
    for phase in facts.phases:
        label = f"after phase {phase.index + 1}, {phase.objective.upper()} (step {phase.stop:,})"
        moments.append((label, phase.stop, phase.objective))
    head = "".join(f'<th class="right">{name.upper()} loss</th>' for name in objectives)
    rows = []
    for label, step, trained in moments:
        losses = next(line["eval_loss"] for line in facts.metrics if line["step"] == step)
        cells = "".join(
            f'<td class="right{" trained" if name == trained else ""}">{losses[name]:.2f}</td>' for name in objectives
        )
        rows.append(f"<tr><th>{escape(label)}</th>{cells}</tr>")
    level = "".join(f'<td class="right">{facts.unigram_loss[name]:.2f}</td>' for name in objectives)
    rows.append(f'<tr class="line"><th>{_LEVEL_LABEL}</th>{level}</tr>')
    return (
        f'<div class="scroll"><table><thead><tr><th>Held-out text</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
