"""From text to a corpus: find sources, read and encode them ahead in threads, write hashed shards in order.

sources/             what the user named -> files, here or on the hub, in one order
readers/             a file -> spans of some megabytes, each read by itself; rows, each a text or why there is none
encoders.py          the fast encoder where it is proven equal (proofs.py), else the tokenizer's own
encoding.py          a span -> ids and counts, in worker threads
shard_sequence.py    encoded spans -> shards of a corpus and its holdout, under the limits; counts every row once
ledger.py            what is finished, so that an interrupted run goes on
folder.py            who may write in the folder, what of it can be kept
writing.py           all sources: workers ahead, one writer behind
completion.py        the tokenizer and corpus.json beside finished shards
program.py           all of it: settings in, corpus folder out
summary.py           what was made, for a person
adoption.py          Megatron's pairs as they are -> a corpus (pairs.py)
tokenizer_training.py  the same sources -> a tokenizer
inspection.py        a corpus -> statistics and decoded rows (views.py)
"""

from toolkit.preprocess.program import PreprocessResult, preprocess
from toolkit.preprocess.settings import PreprocessSettings

__all__ = ["PreprocessResult", "PreprocessSettings", "preprocess"]
