"""From text to a corpus: find sources, read and encode them ahead in threads, write hashed shards in order.

sources/             what the user named -> files, here or on the hub, in one order
readers/             a file -> spans of some megabytes, each read by itself; rows, each a text or why there is none
tokenizer_checks.py  the fast backend where it is proven equal, else the tokenizer's own; the ids of transformers
encoding.py          a span -> ids and counts, in worker threads
accounts.py          counts of rows and documents, of the corpus and of each source
source_checks.py     whether a source is good, and what it looks like if it is not
text_sample.py       texts that the saved tokenizer has to read as the corpus has them
writer/              encoded spans -> shards, group by group
  folder.py          the folder of a corpus: its lock, the tokenizer and corpus.json at the end
  begun.py           what is in progress there, and whether a command may continue it
  groups.py          groups of sources, each in a folder that appears whole; their shards under the corpus's names
  shard_sequence.py  spans -> shards of a corpus and its holdout, under the limits; counts every row once
  corpus.py          a corpus in the making: which groups are written, and what is left
  writing.py         a group of sources: workers ahead, one writer after them
tasks.py             tasks that write it: here, in other processes, on a Ray cluster, as jobs of Slurm
program.py           all of it: settings in, corpus folder out
summary.py           what was made, for a person
upload.py            a corpus for object storage
adoption.py          Megatron's shard files as they are -> a corpus
bundled.py           the quickstart's corpora
tokenizer_training.py  the same sources -> a tokenizer
"""
