#!/usr/bin/env bash
# All of question.toml and trunk.toml: a tokenizer, two corpora, the runs, their tasks, and the means of checkpoints; after
# an interruption the same command goes on.
#
#   docs/examples/studies/question.sh TEXT LABELLED PAIRS OUTPUT
#
# TEXT      a folder or file for `toolkit preprocess`, 2 million tokens or more
# LABELLED  as ../clm-share/run.sh takes it
# PAIRS     the folder `data` of BLiMP
# OUTPUT    a folder for all that is made
set -euo pipefail
here=$(dirname "$(realpath "$0")")
text=$(realpath "$1") labelled=$(realpath "$2") pairs=$(realpath "$3")
mkdir -p "$4/data/blimp" && cd "$4"

"$here/../clm-share/labelled.sh" "$labelled"
for file in "$pairs"/*.jsonl; do head -n 20 "$file" > "data/blimp/$(basename "$file")"; done
test -d tokenizer || toolkit tokenizer train "$text" --vocab-size 2048 --output tokenizer
test -f corpus/corpus.json || toolkit preprocess "$text" --tokenizer tokenizer --output corpus --holdout 0.01
test -f eighth/corpus.json ||
    toolkit preprocess "$text" --tokenizer tokenizer --output eighth --holdout 0.01 --limit-tokens 163840
cp "$here"/{small,question,trunk}.toml .

toolkit study question.toml
toolkit study trunk.toml
# The losses of a mean are those of a run that starts from it, before its first step.
for run in studies/trunk/runs/*; do
    for weights in uniform 1-sqrt linear; do
        mean=means/$(basename "$run")-$weights
        test -d "$mean" || toolkit merge "$run" --steps 1088..1280 --weights $weights --output "$mean"
        toolkit train small.toml --threads 1 --set init.from="$mean" --set run.dir="evaluated/$(basename "$mean")" \
            --set train.steps=1 --set lr.warmup_steps=0 --set lr.decay_steps=0
    done
done
