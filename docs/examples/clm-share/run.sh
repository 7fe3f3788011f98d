#!/usr/bin/env bash
# Five CLM shares x three seeds at one budget, fine-tuned on a data set of each family, and the report.
#
#   docs/examples/clm-share/run.sh TEXT LABELLED OUTPUT
#
# TEXT      files for `toolkit preprocess`, 4 million tokens or more
# LABELLED  sst2/{train,dev}.tsv conll2003/eng.{train,testa,testb} squad/{train,test}.json scifact/ (BEIR)
# OUTPUT    a folder for all that is made; after an interruption the same command goes on
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

pretrain() {
    case $1 in
        0) schedule='[{objective = "mlm", fraction = 1.0}]' ;;
        100) schedule='[{objective = "clm", fraction = 1.0}]' ;;
        *) schedule="[{objective = \"clm\", fraction = 0.$1}, {objective = \"mlm\", fraction = 0.$((100 - $1))}]" ;;
    esac
    run=runs/clm-$1-seed-$2
    mkdir -p "$run"
    OMP_NUM_THREADS=1 toolkit train "$here/pretrain.toml" --set "schedule=$schedule" \
        --set "run.dir=\"$run\"" --set "run.seed=$2" > "$run.log" 2>&1 || { tail "$run.log"; return 255; }
    echo "$run: $(tail -n 1 "$run.log")"
}
export -f pretrain
export here
# Small models use the cores best one by one.
for seed in 0 1 2; do for share in 0 25 50 75 100; do echo "$share $seed"; done; done |
    xargs -P "$(nproc)" -L 1 bash -c 'pretrain "$@"' pretrain

toolkit grid "$here/grid.toml"
toolkit report grid runs/clm-*-seed-? --output report
