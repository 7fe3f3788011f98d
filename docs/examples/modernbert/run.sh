#!/usr/bin/env bash
# A ModernBERT of toy size, trained by MLM on one text and continued on another: by MLM, by half CLM and half MLM, and by
# a detour, CLM and then a tenth as long MLM; three seeds each.
#
#   docs/examples/modernbert/run.sh TEXT DOMAIN OUTPUT
#
# TEXT, DOMAIN  folders for `toolkit preprocess`, 5 million tokens or more each
# OUTPUT        a folder for all that is made; after an interruption the same command goes on
set -euo pipefail
here=$(dirname "$(realpath "$0")")
tokenizer=$(realpath "$here/../../../toolkit/quickstart/tokenizer")
text=$(realpath "$1") domain=$(realpath "$2")
mkdir -p "$3" && cd "$3"
export OMP_NUM_THREADS=1

make() { test -f "$1/corpus.json" ||
    toolkit preprocess "$2" --tokenizer "$tokenizer" --output "$1" --holdout 0.02 --txt-documents paragraph; }
make text "$text"
make domain "$domain"
toolkit train "$here/base.toml"
for seed in 0 1 2; do
    for run in \
        "mlm:[{objective='mlm', steps=330}]" \
        "half:[{objective='clm', steps=165}, {objective='mlm', steps=165}]" \
        "detour:[{objective='clm', steps=300}, {objective='mlm', steps=30}]"; do
        toolkit train "$here/continued.toml" --set "run.dir=runs/${run%%:*}-$seed" --set "run.seed=$seed" \
            --set "schedule=${run#*:}"
    done
done
