"""From text files to a corpus: find sources, read rows, tokenise blocks, write hashed shards.

sources.py          what the user named -> files in one order
readers.py          a file -> rows: a text, or why there is none
blocks.py           rows -> blocks of a few megabytes of text
shard_sequence.py   encoded blocks -> shards, under the limits; counts every row once
ledger.py           what is finished, so that an interrupted run goes on
folder.py           who may write in the folder, what of it can be kept
program.py          all of it: settings in, corpus folder out
summary.py          what was made, for a person
inspection.py       a corpus -> statistics and decoded rows
"""

from toolkit.preprocess.program import PreprocessResult, preprocess
from toolkit.preprocess.settings import PreprocessSettings

__all__ = ["PreprocessResult", "PreprocessSettings", "preprocess"]
