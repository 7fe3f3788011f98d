#!/usr/bin/env bash
# Labelled files as the studies name them, in ./data: docs/examples/clm-share/labelled.sh LABELLED
set -euo pipefail
labelled=$(realpath "$1")

mkdir -p data/sst2
for name in conll2003 squad scifact; do ln -sfn "$labelled/$name" "data/$name"; done
# The last 1,000 training sentences choose the learning rate: the labels of SST-2's own test file are not public.
ln -sfn "$labelled/sst2/dev.tsv" data/sst2/dev.tsv
head -n -1000 "$labelled/sst2/train.tsv" > data/sst2/train.tsv
{ head -n 1 "$labelled/sst2/train.tsv"; tail -n 1000 "$labelled/sst2/train.tsv"; } > data/sst2/validation.tsv
