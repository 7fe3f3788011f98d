"""What to do next, as commands that work on what the quickstart left."""

from html import escape

from toolkit.workflows.report.facts import Facts


def next_commands(facts: Facts) -> str:
    """The last section of the page."""
    folder, switch = facts.folder, facts.phases[0].stop
    longer = facts.phases[-1].stop * 4
    blocks = [
        (
            "Ask the encoder for a hidden word, in Python",
            "from transformers import pipeline\n"
            f'fill = pipeline("fill-mask", "{folder}/hf-encoder")\n'
            'fill("The film was released in the United<|mask|> in 1998.")',
        ),
        (
            "Look at the rows it was trained on",
            f"toolkit inspect {folder}/corpus --set data.sequence_length={facts.settings.data.sequence_length}",
        ),
        (
            "Train on text of your own (.jsonl, .parquet, .txt), with the same tokenizer",
            f"toolkit preprocess my-text.jsonl --tokenizer {folder}/corpus --output data/mine\n"
            "toolkit train quickstart --set data.train=data/mine --set run.dir=runs/mine",
        ),
        (
            "Train four times as long; stopped and started again, it goes on where it was",
            f"toolkit train quickstart --num-procs 2 --set train.steps={longer} --set run.dir=runs/longer",
        ),
        (
            "Fine-tune on labels of your own: columns text and label",
            f"toolkit finetune sc {folder}/hf-encoder --train train.tsv --test test.tsv --lr 5e-4 --output runs/labels",
        ),
        (
            "Export the decoder as it was before the switch",
            f"toolkit convert --to-hf {folder}/checkpoints/step-{switch:08d} runs/decoder-at-switch --form causal",
        ),
    ]
    if facts.mlm_only is None:
        blocks.insert(
            0,
            (
                "Is CLM first worth it? Train the twin without it, and see both curves here",
                "toolkit quickstart --compare",
            ),
        )
    items = "".join(f"<p>{escape(what)}</p><pre>{escape(command)}</pre>" for what, command in blocks)
    return f"\n<h2>What to do next</h2>\n{items}"
