"""Corpora of random ids, and runs over them: what a step costs does not depend on what the ids say."""

from pathlib import Path

from toolkit.testing.corpora import random_documents, write_token_corpus

VOCABULARY, ROWS, COLUMNS = 21_504, 8, 512


def write_corpus(folder: Path, num_documents: int, lengths: tuple[int, int], *, vocabulary: int, seed: int = 0) -> Path:
    """Write documents of uniform lengths, from the first to the last of `lengths`; returns the folder."""
    documents = random_documents(
        num_documents, vocabulary_size=vocabulary, min_length=lengths[0], max_length=lengths[1], first_id=4, seed=seed
    )
    return write_token_corpus(folder, documents, vocabulary_size=vocabulary, bos=3, eos=0, pad=1, mask=2)


def few_steps(folder: Path, objective: str, steps: int, *, rows: int) -> list[str]:
    """Overrides that make a few steps, each of which is logged, out of a preset of many thousand."""
    return [
        f"run.dir={folder / 'run'}", f'schedule=[{{objective="{objective}",steps={steps}}}]',
        f"train.global_batch_rows={rows}", "lr.warmup_steps=1", "lr.decay_steps=1", "log.every=1",
        "log.tensorboard=false",
    ]  # fmt: skip


def write_run(folder: Path, settings: str, *, layers: int, width: int, micro_rows: int, dtype: str = "fp32") -> Path:
    """Write a corpus and a run file below `folder`, whose `run` is the run's; the file, with `settings` in it.

    `settings`: TOML, `schedule` and what follows from it; keys of tables are written with their dots. A step has 8 rows
    of 512.
    """
    corpus = write_corpus(folder / "corpus", 512, (100, 900), vocabulary=VOCABULARY)
    file = folder / "run.toml"
    file.write_text(f"""
precision = "{dtype}"
run.dir = "{folder / "run"}"
data = {{train = "{corpus}", sequence_length = {COLUMNS}}}
train = {{global_batch_rows = {ROWS}, micro_batch_rows = {micro_rows}}}
model.vocab_size = {VOCABULARY}
model.hidden_size = {width}
model.intermediate_size = {4 * width}
model.num_hidden_layers = {layers}
model.num_attention_heads = {max(1, width // 64)}
log.tensorboard = false
{settings}""")
    return file
