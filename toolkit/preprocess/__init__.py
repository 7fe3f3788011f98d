"""From text to a corpus: find sources, read and encode them ahead in threads, write hashed shards in order.

sources/             names from the user -> files, local or on the hub, in one fixed order
readers/             a file -> spans of a few megabytes, each read independently; rows: a text, or why there is none
tokenizer_checks.py  the fast backend if it is proven equal, else the tokenizer's own; the ids of transformers
encoding.py          a span -> ids and counts, in worker threads
accounts.py          row and document counts of the corpus and of each source
source_checks.py     spans of sources; whether a source is usable, and what it looks like if not
text_sample.py       sampled texts, for which the saved tokenizer must give the corpus's ids
writer/              encoded spans -> shards, group by group
  folder.py          the corpus folder: its lock, the tokenizer and corpus.json at the end
  begun.py           the corpus in progress there, and whether a command may continue it
  groups.py          groups of sources, each in a folder that appears atomically; their shards under the corpus's names
  shard_sequence.py  spans -> shards of a corpus and its holdout, within the limits; counts every row once
  corpus.py          a corpus in the making: which groups are written, and what is left
  writing.py         a group of sources: workers ahead, one writer after them
tasks.py             tasks that write it: here, in other processes, on a Ray cluster, as Slurm jobs
program.py           the whole program: settings in, corpus folder out
summary.py           the closing summary for the user
upload.py            a corpus for object storage
adoption.py          Megatron's shard files, unchanged -> a corpus
bundled.py           the quickstart's corpora
tokenizer_training.py  the same sources -> a tokenizer
"""
