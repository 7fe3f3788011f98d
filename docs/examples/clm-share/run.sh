#!/usr/bin/env bash
# The data of study.toml, the study, and the report; after an interruption the same command goes on.
#
#   docs/examples/clm-share/run.sh TEXT LABELLED OUTPUT
#
# TEXT      files for `toolkit preprocess`, 4 million tokens or more
# LABELLED  sst2/{train,dev}.tsv conll2003/eng.{train,testa,testb} squad/{train,test}.json scifact/ (BEIR)
# OUTPUT    a folder for all that is made
set -euo pipefail
here=$(dirname "$(realpath "$0")")
text=$(realpath "$1") labelled=$(realpath "$2") tokenizer=$(realpath "$here/../../../toolkit/quickstart/tokenizer")
mkdir -p "$3/data/sst2" && cd "$3"

for name in conll2003 squad scifact; do ln -sfn "$labelled/$name" "data/$name"; done
# The last 1,000 training sentences choose the learning rate: the labels of SST-2's own test file are not public.
ln -sfn "$labelled/sst2/dev.tsv" data/sst2/dev.tsv
head -n -1000 "$labelled/sst2/train.tsv" > data/sst2/train.tsv
{ head -n 1 "$labelled/sst2/train.tsv"; tail -n 1000 "$labelled/sst2/train.tsv"; } > data/sst2/validation.tsv
test -f corpus/corpus.json || toolkit preprocess "$text" --tokenizer "$tokenizer" --output corpus --holdout 0.01
cp "$here/pretrain.toml" "$here/study.toml" .

toolkit study study.toml
