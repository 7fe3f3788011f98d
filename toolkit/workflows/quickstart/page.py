"""The report as one HTML file that loads nothing, readable on a phone and on paper, and its summary on the terminal."""

import math
from html import escape
from importlib.resources import files
from statistics import fmean, median
from typing import TYPE_CHECKING

from toolkit.core.console import columns
from toolkit.report.pages.html import html_page, pairs_table
from toolkit.workflows.quickstart.evaluations import MaskedWord
from toolkit.workflows.quickstart.facts import Facts
from toolkit.workflows.quickstart.losses import comparison_section, final_loss, loss_section

if TYPE_CHECKING:
    from rich.console import Group

# Questions of the bundled labelled sets, by the name that results give them.
_QUESTIONS = {"entity": "does a sentence mention a named entity (a person, a place, an organisation)?"}


def render(facts: Facts) -> str:
    """The whole page."""
    style = files("toolkit.workflows.quickstart").joinpath("style.css").read_text(encoding="utf-8")
    sections = (
        _head(facts),
        loss_section(facts),
        comparison_section(facts),
        _masked_words(facts),
        _scores(facts),
        _made(facts),
        _settings(facts),
        _time(facts),
        _next_commands(facts),
        _foot(facts),
    )
    return html_page("Quickstart: from text to an encoder", "".join(sections), style=style)


def summary(facts: Facts) -> "Group":
    """Times of all stages, and the results."""
    from rich.console import Group

    times, results = columns("", "stage", "time", "CPU time"), columns("", "result", "", "")
    for title, stage in facts.stages.items():
        times.add_row(title, minutes_text(stage.seconds), minutes_text(stage.cpu_seconds))
    times.add_row("total", minutes_text(facts.seconds), minutes_text(facts.cpu_seconds), style="bold")

    for row in _summary_rows(facts):
        results.add_row(*row)
    return Group(times, "", results, "")


def _summary_rows(facts: Facts) -> list[tuple[str, str, str]]:
    test, twins = _test_score(facts), _twin_scores(facts)
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
            f"{len(twins)} random twins {fmean(twins):.1%}, most frequent label {facts.majority:.1%}",
        ),
    ]
    if facts.mlm_only is not None:
        rows.insert(1, ("  with MLM only", f"{final_loss(facts.mlm_only, 'mlm'):.2f}", "same steps, same data"))
    return rows


def minutes_text(seconds: float) -> str:
    """A time in seconds, or in minutes and seconds."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def _head(facts: Facts) -> str:
    ours, twins = _test_score(facts), fmean(_twin_scores(facts))
    model = facts.settings.model
    tiles = (
        (
            "Held-out MLM loss",
            f"{final_loss(facts.metrics, 'mlm'):.2f}",
            f"nats per token; unigram baseline: {facts.unigram_loss['mlm']:.2f}",
        ),
        (
            "Test accuracy",
            f"{ours:.1%}",
            f"random twins {twins:.1%}, most frequent label {facts.majority:.1%}",
        ),
        (
            "Encoder",
            f"{facts.parameters / 1e6:.1f} M",
            f"parameters; {model.num_hidden_layers} layers of width {model.hidden_size}",
        ),
        ("Whole job", minutes_text(facts.seconds), escape(facts.machine["processor"])),
    )
    items = "".join(
        f'<div><dt>{name}</dt><dd><div class="number">{number}</div><div class="fine">{note}</div></dd></div>'
        for name, number, note in tiles
    )
    return f"""
<h1>From text to an encoder, on this machine</h1>
<p class="lead">An encoder was pretrained on {facts.tokens / 1e6:.1f} million tokens of Wikipedia, first to predict the
next token, then to fill in masked ones; it was exported to Hugging Face and fine-tuned on labelled sentences.
This takes minutes on a laptop and is not a reproduction of the paper
(<a href="https://arxiv.org/abs/2507.00994">arXiv 2507.00994</a>), whose models are 70 to 330 times as large.</p>
<dl class="tiles">{items}</dl>"""


def _masked_words(facts: Facts) -> str:
    items = "".join(
        f"<li><div>{_sentence(word)}</div><div>{_predictions(word)}</div></li>" for word in facts.masked_words
    )
    found = sum(word.predictions[0][0] == word.word for word in facts.masked_words)
    return f"""
<h2>Masked words</h2>
<p>Simple sentences that are not in the training text, each with one word masked. The encoder's top prediction is
the masked word in {found} of {len(facts.masked_words)}. At this size it has learnt which kind of word fits and a few
fixed expressions, but hardly any facts.</p>
<ul class="words">{items}</ul>"""


def _sentence(word: MaskedWord) -> str:
    space = " " if word.word.startswith(" ") else ""
    return f"{escape(word.before)}{space}<mark>{escape(word.word.strip())}</mark>{escape(word.after)}"


def _predictions(word: MaskedWord) -> str:
    return "".join(
        f'<div class="guess{" right-one" if text == word.word else ""}"><span>{escape(text.strip() or text)}</span>'
        f'<div class="bar"><i style="width:{share:.1%}"></i></div>'
        f'<div class="share">{f"{share:.0%}" if share >= 0.005 else "&lt;1%"}</div></div>'
        for text, share in word.predictions
    )


def _scores(facts: Facts) -> str:
    ours, twins, num_test = _test_score(facts), _twin_scores(facts), facts.num_labelled["test"]
    # One standard deviation of a share that is counted over so many independent answers.
    spread = math.sqrt(ours * (1 - ours) / num_test)
    question = _QUESTIONS.get(facts.result.dataset, f"the labels of the set {facts.result.dataset}")
    rows = [
        ("pretrained here", ours, "ours"),
        *((f"random weights, seed {twin.seed}", score, "") for twin, score in zip(facts.twins, twins, strict=True)),
        ("bag-of-words baseline", facts.bag_of_words, ""),
        ("most frequent label", facts.majority, ""),
    ]
    bars = "".join(
        f'<div><span>{name}</span><div class="bar"><i class="{css}" style="width:{score:.2%}"></i></div>'
        f'<div class="share">{score:.1%}</div></div>'
        for name, score, css in rows
    )
    return f"""
<h2>Fine-tuning</h2>
<p>The task: {question} The encoder was fine-tuned on {facts.num_labelled["train"]:,} labelled sentences and tested on
{num_test:,} others. Its twins have the same shape and the same fine-tuning, but start from random weights.
Pretraining gains <strong>{(ours - fmean(twins)) * 100:+.1f} points</strong> over the mean of the
{len(twins)} twins ({fmean(twins):.1%}), and {(ours - facts.majority) * 100:+.1f} over the most frequent
label.</p>
<div class="scores">{bars}</div>
<p class="fine">Accuracy on the test sentences. One fine-tuning run each; with {num_test:,} test sentences, chance
alone moves a score by about {spread * 100:.1f} points. Learning rates were chosen on the validation sentences, for the
pretrained encoder ({facts.result.learning_rate:g}) and for the twins ({facts.twins[0].learning_rate:g}) separately.
<em>Bag-of-words baseline</em>: logistic regression on TF-IDF of words and word bigrams.</p>"""


def _made(facts: Facts) -> str:
    rows = "".join(
        f'<tr><td><code>{escape(path)}</code></td><td>{escape(what)}</td><td class="right">{_size(size)}</td></tr>'
        for path, what, size in facts.files
    )
    return f"""
<h2>Files</h2>
<p>Both exported folders hold the same weights and load in stock transformers without remote code. Their logits were
compared with the checkpoint's on real sentences: the largest difference is {facts.max_logit_difference:.1e}.
Everything is in <code>{escape(facts.folder)}</code>:</p>
<div class="scroll"><table><tbody>{rows}</tbody></table></div>"""


def _settings(facts: Facts) -> str:
    settings, phases = facts.settings, facts.phases
    train, data = settings.train, settings.data
    tokens_per_step = train.global_batch_rows * data.sequence_length
    schedule = ", then ".join(f"{phase.stop - phase.start:,} steps of {phase.objective.upper()}" for phase in phases)
    rates = [line["tokens_per_second"] for line in facts.metrics if "tokens_per_second" in line]
    pairs = {
        "schedule": schedule,
        **({"number of steps": facts.steps_reason} if facts.steps_reason else {}),
        "text": f"{facts.documents:,} Wikipedia articles, {facts.tokens:,} tokens; {facts.epochs:.2f} epochs are read",
        "batch": f"{train.global_batch_rows} rows of {data.sequence_length} = {tokens_per_step:,} tokens per step",
        "learning rate": settings.lr.describe(phases[-1].stop),
        "optimizer": f"AdamW, weight decay {train.weight_decay:g}, gradient norm clipped at {train.grad_clip:g}",
        "precision": f"{settings.precision} with fp32 master weights" if settings.precision == "bf16" else "fp32",
        "engine": f"DeepSpeed, ZeRO-{facts.zero_stage}, {facts.ranks} ranks",
        "speed": f"{median(rates):,.0f} tokens per second (median of the logged steps)",
        "seed": str(settings.run.seed),
    }
    return f"""
<h2>Settings</h2>
{pairs_table(pairs)}
<details><summary>All settings: run.toml, as <code>toolkit train</code> reads it</summary>
<pre>{escape(facts.settings_text)}</pre></details>"""


def _time(facts: Facts) -> str:
    rows = "".join(
        f'<tr><th>{escape(title)}</th><td class="right">{minutes_text(stage.seconds)}</td>'
        f'<td class="right">{minutes_text(stage.cpu_seconds)}</td></tr>'
        for title, stage in facts.stages.items()
    )
    return f"""
<h2>Time and machine</h2>
<div class="scroll"><table><thead>
<tr><th>Stage</th><th class="right">time</th><th class="right">CPU time</th></tr></thead>
<tbody>{rows}<tr class="total"><th>total</th><td class="right">{minutes_text(facts.seconds)}</td>
<td class="right">{minutes_text(facts.cpu_seconds)}</td></tr></tbody></table></div>
<p class="fine">Time is wall-clock time, which is longer on a busy machine; CPU time is summed over the cores.</p>
{pairs_table(facts.machine)}"""


def _foot(facts: Facts) -> str:
    return f"""
<footer>Written {escape(facts.date)} by encoder-pretraining-toolkit {escape(facts.machine["toolkit"])}.
Text: English Wikipedia, CC BY-SA 3.0. Labels: Universal NER, English EWT, CC BY-SA 4.0. Authors and changes are listed
in ATTRIBUTION.md, in the package's folder <code>toolkit/quickstart</code>.</footer>"""


def _test_score(facts: Facts) -> float:
    return facts.result.test[facts.result.metric]


def _twin_scores(facts: Facts) -> list[float]:
    return [twin.test[twin.metric] for twin in facts.twins]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.1f} kB"


def _next_commands(facts: Facts) -> str:
    folder, switch = facts.folder, facts.phases[0].stop
    longer = facts.phases[-1].stop * 4
    blocks = [
        (
            "Predict a masked word, in Python",
            "from transformers import pipeline\n"
            f'fill = pipeline("fill-mask", "{folder}/hf-encoder")\n'
            'fill("The film was released in the United<|mask|> in 1998.")',
        ),
        (
            "Look at the rows it was trained on",
            f"toolkit inspect {folder}/corpus --set data.sequence_length={facts.settings.data.sequence_length}",
        ),
        (
            "Train on your own text (.jsonl, .parquet, .txt), with the same tokenizer",
            f"toolkit preprocess my-text.jsonl --tokenizer {folder}/corpus --output data/mine\n"
            "toolkit train quickstart --set data.train=data/mine --set run.dir=runs/mine",
        ),
        (
            "Train four times as long; if interrupted, the same command resumes",
            f"toolkit train quickstart --num-procs 2 --set train.steps={longer} --set run.dir=runs/longer",
        ),
        (
            "Fine-tune on your own labels: columns text and label",
            f"toolkit finetune sc {folder}/hf-encoder --train train.tsv --test test.tsv --lr 5e-4 --output runs/labels",
        ),
        (
            "Export the decoder from before the switch",
            f"toolkit convert --to-hf {folder}/checkpoints/step-{switch:08d} runs/decoder-at-switch --form causal",
        ),
    ]
    if facts.mlm_only is None:
        blocks.insert(0, ("Train without CLM, and compare both curves here", "toolkit quickstart --compare"))
    items = "".join(f"<p>{escape(what)}</p><pre>{escape(command)}</pre>" for what, command in blocks)
    return f"\n<h2>What to do next</h2>\n{items}"
