"""The sections about pretraining: losses across the switch, and the run without CLM beside it."""

from collections.abc import Iterator
from functools import partial
from html import escape

from toolkit.workflows.report.chart import Band, Level, Series, line_chart, responsive
from toolkit.workflows.report.facts import Facts, Metrics

_LEVEL_LABEL = "unigram baseline"
_LEVEL = (_LEVEL_LABEL, "unigram")


def loss_section(facts: Facts) -> str:
    """Training and held-out losses over the run, and the held-out ones at each end of a phase."""
    phases, objectives = facts.phases, sorted(facts.unigram_loss)
    draw = partial(_loss_chart, facts)
    legend = [
        *(("line " + name, f"{name.upper()}, held-out text") for name in objectives),
        ("line dashed " + objectives[0], "held out, while the other objective trains"),
        ("line faint " + objectives[0], "training batches"),
        ("level", _LEVEL_LABEL),
    ]
    switch = phases[0].stop
    return f"""
<h2>One run, two objectives</h2>
<p>The run predicts the <span class="clm-word">next token</span> up to step {switch:,}, then
<span class="mlm-word">masked tokens</span> from both sides. Two things change at the switch: the objective, which
builds inputs and targets, and the attention. Weights, optimizer state, learning rate and data order continue.</p>
<figure>
{_legend(legend)}
{responsive(lambda width, height: draw((width, height)))}
<figcaption>Loss in nats per token, lower is better; hover over a dot for its value. Held-out text: articles that the
run is not trained on.
<em>{_LEVEL_LABEL.capitalize()}</em>: predicts every token by its frequency in the training text.</figcaption>
</figure>
{_phase_table(facts, objectives)}"""


def comparison_section(facts: Facts) -> str:
    """The held-out loss of the last objective, with and without the phase before it; empty without a comparison."""
    if facts.mlm_only is None:
        return ""
    ours, theirs = final_loss(facts.metrics, "mlm"), final_loss(facts.mlm_only, "mlm")
    lead = theirs - ours
    order = "ends lower" if lead > 0 else "does not end lower"
    legend = [("line mlm", "CLM, then MLM"), ("line only", "MLM only"), ("level", _LEVEL_LABEL)]
    return f"""
<h2>Does CLM first help?</h2>
<p>A second run spent all {facts.phases[-1].stop:,} steps on MLM: same model, same rows in the same order, same learning
rates. In this single comparison the schedule with CLM first {order} on masked tokens of held-out text:
<strong>{ours:.2f}</strong> against <strong>{theirs:.2f}</strong> nats, a difference of {abs(lead):.2f}.</p>
<figure>
{_legend(legend)}
{responsive(lambda width, height: _comparison_chart(facts, facts.mlm_only or (), (width, height)))}
<figcaption>Held-out MLM loss in nats per token. One seed, one model of {facts.parameters / 1e6:.1f} million parameters,
the first minutes of training: a CLM step also costs more time than an MLM step, since every position is a target.
The paper's own evidence comes from models up to 1 billion parameters and 100 billion tokens.</figcaption>
</figure>"""


def final_loss(metrics: Metrics, objective: str) -> float:
    """The last held-out loss of an objective."""
    return _evaluations(metrics, objective)[-1][1]


def _loss_chart(facts: Facts, size: tuple[int, int]) -> str:
    phases = facts.phases
    attention = {line["phase"]: line["attention"] for line in facts.metrics}
    bands = [
        Band(
            phase.start,
            phase.stop,
            f"phase {phase.index + 1}: {phase.objective.upper()}, {attention[phase.index]} attention",
            phase.objective.upper(),
            phase.objective,
        )
        for phase in phases
    ]
    levels = [Level(phase.start, phase.stop, facts.unigram_loss[phase.objective], *_LEVEL) for phase in phases]
    series = [
        *_training_lines(facts),
        *(line for name in facts.unigram_loss for line in _held_out_lines(facts, name)),
    ]
    title = "Training and held-out loss over the steps of the run"
    return line_chart(series, bands=bands, levels=levels, x_label="step", title=title, size=size)


def _training_lines(facts: Facts) -> Iterator[Series]:
    for phase in facts.phases:
        points = tuple(
            (line["step"], line["loss"]) for line in facts.metrics if line["phase"] == phase.index and "loss" in line
        )
        if points:
            yield Series(f"{phase.objective}, training batch", points, f"faint {phase.objective}")


def _held_out_lines(facts: Facts, objective: str) -> Iterator[Series]:
    """Solid where the objective trains, dashed elsewhere; neighbouring stretches share the point at the switch."""
    points = _evaluations(facts.metrics, objective)
    label = f"{objective.upper()}, held out"
    for phase in facts.phases:
        within = tuple(point for point in points if phase.start <= point[0] <= phase.stop)
        is_trained, is_last = phase.objective == objective, phase.index == facts.phases[-1].index
        css = objective if is_trained else f"dashed {objective}"
        if within:
            yield Series(label, within, css, has_dots=is_trained, ends_with_value=is_last)


def _comparison_chart(facts: Facts, mlm_only: Metrics, size: tuple[int, int]) -> str:
    series = [
        Series("MLM only", _evaluations(mlm_only, "mlm"), "only", has_dots=True, ends_with_value=True),
        Series("CLM, then MLM", _evaluations(facts.metrics, "mlm"), "mlm", has_dots=True, ends_with_value=True),
    ]
    bands = [
        Band(
            phase.start,
            phase.stop,
            f"{phase.objective.upper()} in the run with both",
            phase.objective.upper(),
            phase.objective,
        )
        for phase in facts.phases
    ]
    level = Level(0, facts.phases[-1].stop, facts.unigram_loss["mlm"], *_LEVEL)
    title = "Held-out MLM loss of both runs over the steps"
    return line_chart(series, bands=bands, levels=[level], x_label="step", title=title, size=size)


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


def _evaluations(metrics: Metrics, objective: str) -> tuple[tuple[float, float], ...]:
    return tuple((line["step"], line["eval_loss"][objective]) for line in metrics if "eval_loss" in line)


def _legend(entries: list[tuple[str, str]]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true">'
        f'<line class="{css}" x1="0" x2="26" y1="5" y2="5"/></svg>{escape(text)}</li>'
        for css, text in entries
    )
    return f'<ul class="legend">{items}</ul>'
