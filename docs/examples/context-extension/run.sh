#!/usr/bin/env bash
# A trunk on rows of 128 tokens, a branch on rows of 512, its export, and the loss by position.
#
#   docs/examples/context-extension/run.sh OUTPUT
#
# OUTPUT    a folder for all that is made; after an interruption the same command goes on
set -euo pipefail
here=$(dirname "$(realpath "$0")")
bundled=$(realpath "$here/../../../toolkit/quickstart")
mkdir -p "$1" && cd "$1"
export OMP_NUM_THREADS=1

test -f corpus/corpus.json ||
    toolkit preprocess "$bundled/wikipedia-train.parquet" --tokenizer "$bundled/tokenizer" --output corpus --holdout 0.1

toolkit train "$here/short.toml"

test -f runs/long/run.toml || toolkit branch runs/short --step 600 --config "$here/long.toml" --output runs/long
# What as many more steps of the same rate give without longer rows and without another rotary base.
test -f runs/control/run.toml || toolkit branch runs/short --step 600 --config "$here/long.toml" --output runs/control \
    --set data.sequence_length=128 --set train.global_batch_rows=32 \
    --set model.rope_theta=10000.0 --set model.max_position_embeddings=128
for name in control long; do toolkit train "runs/$name/run.toml"; done

test -d exported || toolkit convert --to-hf runs/long exported --form causal
python "$here/loss_by_position.py" corpus/holdout before=runs/short control=runs/control after=runs/long \
    --export exported --output results
