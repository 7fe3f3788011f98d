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
mkdir -p "$3" && cd "$3"

"$here/labelled.sh" "$labelled"
test -f corpus/corpus.json || toolkit preprocess "$text" --tokenizer "$tokenizer" --output corpus --holdout 0.01
cp "$here/pretrain.toml" "$here/study.toml" .

toolkit study study.toml
