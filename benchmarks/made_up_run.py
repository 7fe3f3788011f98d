"""A corpus of random ids and a run file over it: what a step costs does not depend on what the ids say."""

from pathlib import Path

from toolkit.testing.corpora import random_documents, write_token_corpus

VOCABULARY, ROWS, COLUMNS = 21_504, 8, 512


def write_run(folder: Path, settings: str, *, layers: int, width: int, micro_rows: int, dtype: str = "fp32") -> Path:
    """Write both below `folder`, whose `run` is the run's; the file, to whose 8 rows of 512 `settings` are added.

    `settings`: TOML, `schedule` and what follows from it; keys of tables are written with their dots.
    """
    documents = random_documents(512, vocabulary_size=VOCABULARY, min_length=100, max_length=900, first_id=3)
    write_token_corpus(folder / "corpus", documents, vocabulary_size=VOCABULARY, eos=0, pad=1, mask=2)
    file = folder / "run.toml"
    file.write_text(f"""
precision = "{dtype}"
run.dir = "{folder / "run"}"
data = {{train = "{folder / "corpus"}", sequence_length = {COLUMNS}}}
train = {{global_batch_rows = {ROWS}, micro_batch_rows = {micro_rows}}}
model.vocab_size = {VOCABULARY}
model.hidden_size = {width}
model.intermediate_size = {4 * width}
model.num_hidden_layers = {layers}
model.num_attention_heads = {max(1, width // 64)}
log.tensorboard = false
{settings}""")
    return file
