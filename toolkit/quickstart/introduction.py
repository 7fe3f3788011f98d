"""Texts of the quickstart's report, before and between the sections that every report has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from statistics import fmean, median

import numpy as np

from toolkit.core.errors import UserError
from toolkit.core.machine import processor_name
from toolkit.experiments.grid.cells import Score
from toolkit.experiments.report.pages.html import pairs_table
from toolkit.experiments.report.pages.masked_words import masked_words_section, predict_masked_words
from toolkit.experiments.report.pages.page import Introduction
from toolkit.model.parameters import parameter_counts
from toolkit.objectives.schedule import Phase
from toolkit.preprocess.bundled import QUICKSTART_DATA
from toolkit.run import RunFolder
from toolkit.run.data import RunData, open_run_data
from toolkit.run.load import read_resolved
from toolkit.run.metrics import read_lines
from toolkit.run.settings import RunSettings
from toolkit.training.batching import EvaluationBatches

_SENTENCES = (
    ("The film was released in the United", " States", " in 1998."),
    ("She", " was", " born in New York City."),
    ("It is one", " of", " the largest cities in the country."),
    ("The war began", " in", " 1861 and ended four years later."),
    ("They", " were", " married in 1921 and had three children."),
    ("The team won the championship for the first", " time", " in its history."),
    ("The band released their first", " album", " in 1995."),
    ("In 1914 he joined the", " army", " and fought in the war."),
)
_TILE = '<div><dt>{}</dt><dd><div class="number">{}</div><div class="fine">{}</div></dd></div>'
_BAR = (
    '<div><span>{}</span><div class="bar"><i class="{}" style="width:{:.2%}"></i></div>'
    '<div class="share">{:.1%}</div></div>'
)


@dataclass(frozen=True)
class Findings:
    """Finished runs and scores of one quickstart."""

    runs: Sequence[RunFolder]
    """The run with CLM then MLM; then the MLM-only run, if it was trained."""
    scores: Sequence[Score]
    """Scores of the models `pretrained` and `random`, by seed."""
    steps_reason: str
    """Reason for the number of steps; empty if nothing was measured."""
    max_difference: float
    """Largest difference between logits of the exported folders, in transformers, and of the checkpoint."""

    def introduction(self) -> Introduction:
        """The head of the page, and the beginnings of its sections."""
        return Introduction(
            title="Quickstart: from text to an encoder",
            head=self._head(),
            before={
                "figures": ("One run, two objectives", self._losses()),
                "tables": ("Fine-tuning", self._accuracies()),
                "settings": ("Settings and machine", self._settings()),
                "files": ("Files", self._exports()),
            },
            sections=(
                ("words", "Masked words", self._masked_words()),
                ("next", "What to do next", self._next_commands()),
            ),
            order=("figures", "words", "tables", "next"),
            unigram=self.unigram,
            command="toolkit quickstart",
        )

    def summary(self) -> list[str]:
        """The results, as lines for the terminal."""
        last, unigram = self._phases[-1].stop, self.unigram["mlm"]
        before, after = (self._held_out(step)["mlm"] for step in (0, last))
        lines = [f"held-out MLM loss: {after:.2f} (before training {before:.2f}, unigram baseline {unigram:.2f})"]
        if len(self.runs) > 1:
            lines.append(f"  with MLM alone, same steps and rows: {self._held_out(last, run=1)['mlm']:.2f}")
        others = f"random twins {self._accuracy('random'):.1%}, most frequent label {self._majority:.1%}"
        return [*lines, f"test accuracy: {self._accuracy('pretrained'):.1%} ({others})"]

    @cached_property
    def unigram(self) -> dict[str, float]:
        """Cross-entropy of a unigram model, in nats per target, on the targets that the run evaluates; by objective.

        Frequencies are counted over the training corpus, with one added to each count.
        """
        data, counts_V = self._data, np.ones(self._data.corpus.vocabulary.size, dtype=np.int64)
        for shard in data.corpus.shards:
            counts_V += np.bincount(shard.tokens, minlength=counts_V.size)
        losses_V = np.log(counts_V.sum() / counts_V)
        (rows,) = data.validation_rows.values()
        num_rows = min(self._run.eval.rows or rows.num_rows, rows.num_rows)
        batches = EvaluationBatches(rows, num_rows=num_rows, micro_batch_rows=8, seed=self._run.run.seed)
        return {
            name: float(losses_V[np.concatenate([batch.labels_N.numpy() for batch in batches.of(objective)])].mean())
            for name, objective in data.evaluated.items()
        }

    @cached_property
    def _data(self) -> RunData:
        return open_run_data(read_resolved(self.runs[0].settings_file))

    @property
    def _run(self) -> RunSettings:
        return self._data.run.settings

    @property
    def _phases(self) -> tuple[Phase, ...]:
        return self._data.run.plan.schedule.phases

    def _held_out(self, step: int, *, run: int = 0) -> dict[str, float]:
        """Validation losses at a step, by objective."""
        for line in read_lines(self.runs[run]):
            if line["step"] == step and "eval_loss" in line:
                return dict(line["eval_loss"])
        raise UserError(
            f"{self.runs[run].metrics_file} has no evaluation at step {step}, so the report cannot show the run.\n"
            f"Remove {self.runs[run].path} and start again."
        )

    @property
    def _majority(self) -> float:
        assert self.scores[0].majority is not None
        return self.scores[0].majority

    def _accuracy(self, model: str) -> float:
        return fmean(score.main for score in self.scores if score.model == model)

    def _head(self) -> str:
        final, size = self._held_out(self._phases[-1].stop)["mlm"], parameter_counts(self._run.model).total / 1e6
        shape = f"{self._run.model.num_hidden_layers} layers of width {self._run.model.hidden_size}"
        twins = f"random twins {self._accuracy('random'):.1%}, most frequent label {self._majority:.1%}"
        tiles = (
            ("Held-out MLM loss", f"{final:.2f}", f"nats per token; unigram baseline: {self.unigram['mlm']:.2f}"),
            ("Test accuracy", f"{self._accuracy('pretrained'):.1%}", f"mean of seeds; {twins}"),
            ("Encoder", f"{size:.1f} M", f"parameters; {shape}"),
            ("Pretraining", f"{self._phases[-1].stop:,}", f"steps, on {escape(processor_name())}"),
        )
        return f"""
<h1>From text to an encoder, on this machine</h1>
<p class="lead">An encoder was pretrained on {self._data.corpus.num_tokens / 1e6:.1f} million tokens of Wikipedia, first
to predict the next token, then to fill in masked ones; it was exported to Hugging Face and fine-tuned on labelled
sentences. This takes minutes on a laptop and is not a reproduction of the paper
(<a href="https://arxiv.org/abs/2507.00994">arXiv 2507.00994</a>), whose models are 70 to 330 times as large.</p>
<dl class="tiles">{"".join(_TILE.format(*tile) for tile in tiles)}</dl>"""

    def _losses(self) -> str:
        return f"""
<p>The run predicts the <span class="clm-word">next token</span> up to step {self._phases[0].stop:,}, then
<span class="mlm-word">masked tokens</span> from both sides. Two things change at the switch: the objective, which
builds inputs and targets, and the attention. Weights, optimizer state, learning rate and data order continue. Both
losses are measured throughout, on held-out articles that the run is not trained on.</p>
{self._phase_table()}{self._comparison() if len(self.runs) > 1 else ""}"""

    def _phase_table(self) -> str:
        names = sorted(self.unigram)
        rows = [("before the first step", self._held_out(0), "")]
        for phase in self._phases:
            title = f"after phase {phase.index + 1}, {phase.objective.upper()} (step {phase.stop:,})"
            rows.append((title, self._held_out(phase.stop), phase.objective))
        rows.append(("unigram baseline", self.unigram, ""))
        head = "".join(f'<th class="right">{name.upper()} loss</th>' for name in names)
        body = "".join(
            f"<tr{' class=line' if losses is self.unigram else ''}><th>{title}</th>"
            + "".join(
                f'<td class="right{" trained" if name == trained else ""}">{losses[name]:.2f}</td>' for name in names
            )
            + "</tr>"
            for title, losses, trained in rows
        )
        return f"<table><thead><tr><th>Held-out text</th>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _comparison(self) -> str:
        last = self._phases[-1].stop
        ours, theirs = self._held_out(last)["mlm"], self._held_out(last, run=1)["mlm"]
        order = "ends lower" if ours < theirs else "does not end lower"
        return f"""
<h3>Does CLM first help?</h3>
<p>A second run, in the figure below, spent all {last:,} steps on MLM: same model, same rows in the same order, same
learning rates. In this single comparison the schedule with CLM first {order} on masked tokens of held-out text:
<strong>{ours:.2f}</strong> against <strong>{theirs:.2f}</strong> nats, a difference of {abs(theirs - ours):.2f}.</p>
<p class="fine">One seed, one tiny model, the first minutes of training: a CLM step also costs more time than an MLM
step, since every position is a target. The paper's own evidence comes from models up to 1 billion parameters and 100
billion tokens.</p>"""

    def _accuracies(self) -> str:
        ours, twins = self._accuracy("pretrained"), self._accuracy("random")
        num_train, num_test = _num_labelled("train"), _num_labelled("test")
        names = {"pretrained": "pretrained here", "random": "random weights"}
        bars = [
            (f"{names[score.model]}, seed {score.seed}", "ours" if score.model == "pretrained" else "", score.main)
            for score in self.scores
        ]
        bars.append(("most frequent label", "", self._majority))
        # One standard deviation, in points, of an accuracy over `num_test` independent answers.
        spread = 100 * math.sqrt(ours * (1 - ours) / num_test)
        return f"""
<p>The task: does a sentence mention a named entity (a person, a place, an organisation)? The encoder was fine-tuned on
{num_train:,} labelled sentences and tested on {num_test:,} others. Its twins have the same shape and the same
fine-tuning, but start from random weights. Pretraining gains <strong>{100 * (ours - twins):+.1f} points</strong> over
the mean of the twins ({twins:.1%}), and {100 * (ours - self._majority):+.1f} over the most frequent label. With
{num_test:,} test sentences, chance alone moves a score by about {spread:.1f} points.</p>
<div class="scores">{"".join(_BAR.format(name, css, score, score) for name, css, score in bars)}</div>"""

    def _masked_words(self) -> str:
        words = predict_masked_words(self.runs[0].path / "hf-encoder", _SENTENCES)
        return masked_words_section(words) + (
            "<p>At this size it has learnt which kind of word fits and a few fixed expressions, but hardly a fact.</p>"
        )

    def _settings(self) -> str:
        settings, corpus = self._run, self._data.corpus
        train, length, last = settings.train, settings.data.sequence_length, self._phases[-1].stop
        manifest = self.runs[0].newest_manifest()
        assert manifest is not None
        layout = manifest.layout
        rates = [line["tokens_per_second"] for line in read_lines(self.runs[0]) if "tokens_per_second" in line]
        epochs = last * train.global_batch_rows / self._data.rows.num_rows
        pairs = {
            "schedule": ", then ".join(
                f"{phase.stop - phase.start:,} steps of {phase.objective.upper()}" for phase in self._phases
            ),
            "number of steps": self.steps_reason,
            "text": f"{corpus.num_documents:,} Wikipedia articles, {corpus.num_tokens:,} tokens; {epochs:.2f} epochs",
            "batch": f"{train.global_batch_rows} rows of {length} = {train.global_batch_rows * length:,} tokens a step",
            "learning rate": settings.lr.describe(last),
            "optimizer": f"AdamW, weight decay {train.weight_decay:g}, gradient norm clipped at {train.grad_clip:g}",
            "precision": "bf16 with fp32 master weights" if settings.precision == "bf16" else "fp32",
            "engine": f"DeepSpeed, ZeRO-{layout.zero_stage}, {layout.world_size} ranks",
            "speed": f"{median(rates):,.0f} tokens per second (median of the logged steps)",
            "seed": str(settings.run.seed),
        }
        return pairs_table({name: value for name, value in pairs.items() if value})

    def _exports(self) -> str:
        return f"""
<p><code>hf-encoder</code> and <code>hf-decoder</code> in <code>{escape(str(self.runs[0].path))}</code> hold the same
weights and load in stock transformers without remote code. Their logits were compared with the checkpoint's on real
sentences: the largest difference is {self.max_difference:.1e}.</p>
<p class="fine">Text: English Wikipedia, CC BY-SA 3.0. Labels: Universal NER, English EWT, CC BY-SA 4.0. Authors and
changes are listed in ATTRIBUTION.md, in the package's folder <code>toolkit/quickstart</code>.</p>"""

    def _next_commands(self) -> str:
        folder, last = self.runs[0].path, self._phases[-1].stop
        blocks = {
            "Train without CLM, and compare both curves here": "toolkit quickstart --compare",
            "Predict a masked word, in Python": "from transformers import pipeline\n"
            f'fill = pipeline("fill-mask", "{folder}/hf-encoder")\n'
            'fill("The film was released in the United<|mask|> in 1998.")',
            "Look at the rows it was trained on": f"toolkit inspect {folder}/corpus --set "
            f"data.sequence_length={self._run.data.sequence_length}",
            "Train on your own text (.jsonl, .parquet, .txt), with the same tokenizer": "toolkit preprocess "
            f"my-text.jsonl --tokenizer {folder}/corpus --output data/mine\n"
            "toolkit train quickstart --set data.train=data/mine --set run.dir=runs/mine",
            "Train four times as long; if interrupted, the same command resumes": "toolkit train quickstart "
            f"--num-procs 2 --set train.steps={4 * last} --set run.dir=runs/longer",
            "Fine-tune on your own labels: columns text and label": f"toolkit finetune sc {folder}/hf-encoder "
            "--train train.tsv --test test.tsv --lr 5e-4 --output runs/labels",
            "Export the decoder from before the switch": "toolkit convert --to-hf "
            f"{folder}/checkpoints/step-{self._phases[0].stop:08d} runs/decoder-at-switch --form causal",
        }
        return "".join(f"<p>{escape(what)}</p><pre>{escape(command)}</pre>" for what, command in blocks.items())


def _num_labelled(split: str) -> int:
    return len((QUICKSTART_DATA / "entity" / f"{split}.tsv").read_bytes().splitlines()) - 1
