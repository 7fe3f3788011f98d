#!/usr/bin/env bash
# A published decoder, SmolLM2-135M, continued as an encoder; after an interruption the same command goes on.
#
#   docs/examples/smollm2/run.sh DECODER MINILM TEXT LABELLED OUTPUT
#
# DECODER   HuggingFaceTB/SmolLM2-135M, or a folder of it, such as decoder_from_gguf.py writes
# MINILM    sentence-transformers/all-MiniLM-L6-v2, or a folder of it
# TEXT      files for `toolkit preprocess`, 1 million tokens or more
# LABELLED  sst2/{train,dev}.tsv conll2003/eng.{train,testb}
# OUTPUT    a folder for all that is made
set -euo pipefail
here=$(dirname "$(realpath "$0")")
place() { if test -e "$1"; then realpath "$1"; else echo "$1"; fi; }
decoder=$(place "$1") minilm=$(place "$2") text=$(realpath "$3") labelled=$(realpath "$4")
mkdir -p "$5" && cd "$5"

"$here/../clm-share/labelled.sh" "$labelled"
# The first rows of the test files: at this size a cell spends most of its time on them.
head -n 401 data/sst2/dev.tsv > data/sst2/dev-400.tsv
awk -v RS= -v ORS='\n\n' 'NR <= 300' data/conll2003/eng.testb > data/eng.testb-300
for file in {pretrain,study,grid}.toml; do test -e "$file" || cp "$here/$file" .; done
test -e models/decoder || toolkit convert --from-hf "$decoder" models/decoder
if test -d "$minilm"; then ln -sfn "$minilm" models/minilm
elif ! test -e models/minilm; then
    hf download "$minilm" --local-dir models/minilm.part
    mv models/minilm.part models/minilm
fi
test -f corpus/corpus.json ||
    toolkit preprocess "$text" --tokenizer models/decoder --output corpus --holdout 0.01 --eod '<|endoftext|>'
toolkit study study.toml
for run in decoder random; do
    for step in 16 64; do
        test -e "exports/$run-$step" ||
            toolkit convert --to-hf "study/runs/$run-seed-0/checkpoints/step-$(printf %08d $step)" "exports/$run-$step"
    done
done
test -e exports/before || toolkit convert --to-hf models/decoder exports/before
python "$here/fill_mask.py" exports/before exports/decoder-16 exports/decoder-64 exports/random-64 | tee guesses.md
toolkit grid grid.toml
toolkit report grid study/runs/* --output report
