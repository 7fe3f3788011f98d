"""The errors that a user can cause, as a table: a command line, and what its message has to say.

    python -m tests.cli.errors        prints every message as a user sees it, to be read aloud

A case's words may name what `Place` lays down, as {corpus}, {run}, {text} and so on.
"""

import os

if __name__ == "__main__":
    # Its client reads this once, when it is imported; the cases have a hub of their own.
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"

import tempfile
from pathlib import Path

from tests.cli.place import Case, Place, call, call_apart

__all__ = ["CASES", "ELSEWHERE", "LAUNCHED"]


def _train(*options: str, found: tuple[str, ...], remedy: str, under: str = "") -> Case:
    return Case(("train", "{run}", *options), found, remedy, under)


def _set(*values: str, found: tuple[str, ...], remedy: str, under: str = "") -> Case:
    return _train(*(word for value in values for word in ("--set", value)), found=found, remedy=remedy, under=under)


def _preprocess(*words: str, found: tuple[str, ...], remedy: str, under: str = "") -> Case:
    return Case(("preprocess", *words), found, remedy, under)


def _tokenizer(*words: str, found: tuple[str, ...], remedy: str, under: str = "") -> Case:
    return Case(("tokenizer", "train", *words), found, remedy, under)


def _adopt(*words: str, found: tuple[str, ...], remedy: str) -> Case:
    return Case(("adopt", *words, "--tokenizer", "{tokenizer}"), found, remedy)


def _export(*words: str, found: tuple[str, ...], remedy: str, under: str = "") -> Case:
    return Case(("convert", "--to-hf", *words), found, remedy, under)


def _import(*words: str, found: tuple[str, ...], remedy: str, under: str = "") -> Case:
    return Case(("convert", "--from-hf", *words), found, remedy, under)


def _finetune(*words: str, found: tuple[str, ...], remedy: str, under: str = "", test: str = "{table}") -> Case:
    given = () if "--train" in words else ("--train", "{table}")
    output = () if "--output" in words else ("--output", "out")
    return Case(("finetune", *words, *given, "--test", test, *output), found, remedy, under)


def _score(*words: str, found: tuple[str, ...], remedy: str) -> Case:
    return Case(("score", *words, "--output", "out"), found, remedy)


def _on_ray(under: str, *, found: tuple[str, ...], remedy: str) -> Case:
    return Case(("grid", "{whole_grid}", "--executor", "ray"), found, remedy, under)


def _named(*words: str, found: tuple[str, ...], remedy: str, under: str = "") -> Case:
    return Case(("finetune", "sc", "{checkpoint}", *words, "--output", "out"), found, remedy, under)


def _merge(*words: str, found: tuple[str, ...], remedy: str) -> Case:
    return Case(("merge", *words, *(() if "--output" in words else ("--output", "merged"))), found, remedy)


_SETTINGS = (
    Case(("train", "no-such.toml"), ("run file 'no-such.toml' does not exist",), "Available presets: 1b, 210m"),
    Case(("train",), ("missing argument 'RUN.toml|PRESET'",), "For example: toolkit train run.toml"),
    Case(("train", "{run}", "--nonsense"), ("no such option: --nonsense",), "toolkit train --help"),
    Case(("--nonsense",), ("no such option: --nonsense",), "toolkit --help"),
    Case(("train", "{broken_toml}"), ("is not valid TOML", "line 1"), "Correct it"),
    Case(("train", "{open_toml}"), ("is not valid TOML", "line 2, column 12, the end"), "Correct it"),
    Case(("doctor", "no-such.toml"), ("run file 'no-such.toml' does not exist",), "Available presets: 1b, 210m"),
    Case(("doctor",), ("missing argument 'RUN.toml|PRESET'",), "For example: toolkit doctor run.toml"),
    Case(("doctor", "{run}", "--set", "train.steps=ten"), ("train.steps", "'ten'"), "an integer"),
    Case(("doctor", "{run}", "--until", "3"), ("no such option: --until",), "toolkit doctor --help"),
    _set("train.micro_batch_row=2", found=("unknown key 'train.micro_batch_row'",), remedy="'micro_batch_rows'"),
    _set("train.steps=ten", found=("train.steps", "'ten'"), remedy="an integer"),
    _set("objectives.mlm.mask_ratio=1.4", found=("objectives.mlm.mask_ratio", "1.4"), remedy="at most 1"),
    _set("objectives.mlm.mask_ratio=0", found=("objectives.mlm.mask_ratio", "0"), remedy="above 0"),
    _set("schedule=[]", found=("the schedule is empty",), remedy="Give at least one [[schedule]]"),
    _set("schedule.0.tokens=5", found=("'clm' has steps = 10 and tokens = 5",), remedy="exactly one of"),
    _set(
        'schedule=[{objective="clm",fraction=0.5},{objective="mlm",fraction=0.4}]',
        "train.steps=20",
        found=("0.5 + 0.4 = 0.9",),
        remedy="expected 1. Change them",
    ),
    _set('schedule=[{objective="clm",fraction=1.0}]', found=("fractions of train.steps",), remedy="Set train.steps"),
    _set("scheduler.kind=alternat", found=("unknown scheduler 'alternat'",), remedy="Did you mean 'alternate'"),
    _set("scheduler.kind=alternate", found=("scheduler.cycles is missing",), remedy="Times that the list"),
    _set("train.steps=30", found=("10 (clm) + 10 (mlm) = 20 steps",), remedy="Leave train.steps out"),
    _set("schedule.0.objective=clmm", found=("'clmm'",), remedy="Did you mean 'clm'"),
    _set("model.preset=120m", found=("model.preset='120m'",), remedy="Available presets: "),
    _set("model.num_attention_heads=5", found=("hidden_size=32", "num_attention_heads=5"), remedy="Change one"),
    _set("model.vocab_size=50", found=("model.vocab_size", "50", "97"), remedy="Leave model.vocab_size out"),
    _set("lr.peak=-1", found=("lr.peak", "-1"), remedy="above 0"),
    _set(
        "lr.warmup_steps=30",
        found=("lr.warmup_steps (30)", "20 steps"),
        remedy="Make them shorter, for example with --set lr",
    ),
    _set("lr.kind=cosine", found=("lr.decay_steps=4", 'lr.kind="cosine"'), remedy="Leave lr.decay_steps out"),
    _set("lr.decay=exponential", found=('lr.decay="exponential"',), remedy="Set lr.floor"),
    _set(
        "train.micro_batch_rows=3",
        found=("train.micro_batch_rows=3", "does not divide 8"),
        remedy="Change train.global_batch_rows",
    ),
    *(
        Case(("train", "{no_validation}", "--set", setting), (f"{setting} asks for",), "Set data.validation")
        for setting in ("eval.every=5", "checkpoint.keep_best=true")
    ),
    _set("log.wandb=true", found=("log.wandb = true", "not installed"), remedy="pip install wandb"),
    Case(("train", "210m", "--dry-run", "--set", "log.wandb=true"), ("log.wandb = true",), "pip install wandb"),
    _set("lr.peak=nan", found=("for lr.peak:", "got nan"), remedy="a finite number"),
    _set('lr.peak="1e-3"', found=("for lr.peak:", "got '1e-3'"), remedy="without quotes"),
    _set("lr=3", found=("for lr:", "got 3"), remedy="Its keys: peak"),
    _set('log.wandb=""', found=("for log.wandb:", "got ''"), remedy="true or false, or a non-empty string"),
    _set("train.sequence_length=64", found=("unknown key 'train.sequence_length'",), remedy="'data.sequence_length'"),
    _set("objectives.clm.mask_ratio=0.4", found=("unknown key 'objectives.clm.mask_ratio'",), remedy="remove it"),
    _set("objectives.mlm.mask_fraction=0.3", found=("invalid value for objectives.mlm", "0.3 + "), remedy="Set all"),
    _set(
        "objectives.mlm.unit=word", "objectives.mlm.word_rule=2", found=("word_rule = 2",), remedy="Leave word_rule out"
    ),
    _set("objectives.mlm.kind=3", found=("objectives.mlm.kind", "got 3"), remedy="clm, diffusion, mlm"),
    _set("schedule.0.steps=0", found=("for schedule.0.steps:", "got 0"), remedy="above 0"),
    _set("schedule=3", found=("for schedule:", "got 3"), remedy="a list"),
    _set("schedule=[3]", found=("for schedule.0:", "got 3"), remedy="Its keys: objective"),
    _set("schedule.2.steps=5", found=("'2' is not an item of a list of 2",), remedy="from 0 to 1"),
    _set(
        'schedule=[{objective="clm",fraction=0.5},{objective="mlm",steps=4}]',
        found=("phase 2 (mlm) has none",),
        remedy="Give a fraction to every phase",
    ),
    _set("lr.peak", found=("--set 'lr.peak'", "not of the form key=value"), remedy="for example: train.steps=100"),
    _set("lr.peak.x=3", found=("lr.peak is a value",), remedy="correct the key"),
    _set("model.preset=[1]", found=("model.preset=[1]",), remedy="Available presets: "),
    _set("data.sequence_length=99999999999", found=("data.sequence_length",), remedy="at most 1,048,576"),
    _set("data.min_length=100", found=("data.min_length=100", "1 segment "), remedy="Make the rows longer"),
    _set("data.train=", found=("for data.train:", "got ''"), remedy="non-empty"),
    _set("data.train=~/corpus", found=("~/corpus",), remedy="give the full path"),
    _set('data.train="a\\u0000b"', found=("the NUL character",), remedy="Remove it"),
    _set("precision=fp16", found=("for precision:", "got 'fp16'"), remedy="'fp32' or 'bf16'"),
    _set(
        "schedule.0.objective=breaking",
        found=("'breaking'", "cannot be imported"),
        remedy="uninstall it",
        under="plugin",
    ),
    Case(("train", "{empty}"), ("{empty} is a directory",), "Give the .toml file"),
    Case(("train", "{twice_toml}"), ("Cannot declare [run] twice", "line "), "Correct it"),
    Case(("train", "{latin_toml}"), ("not valid UTF-8", "byte 2"), "Save it as UTF-8"),
    Case(("train", "{no_data}"), ("data is missing",), "toolkit preprocess"),
    Case(("train", "{no_schedule}"), ("schedule is missing",), "[[schedule]]"),
    Case(("train", "{no_model}"), ("model is missing",), "model.preset"),
)

_MOVED = (
    Case(
        ("train", "{moved}/run.toml", "--dry-run"),
        ("{moved}/run.toml lies in the folder of a run that has checkpoints", "runs/a, which is {here}/runs/a from"),
        "--set run.dir={moved}",
    ),
)

_PARALLEL = (
    _train(
        *("--ds-config", "zero2", "--set", "parallel.pp=4", "--num-procs", "4"),
        found=("parallel.pp=4", "ZeRO stage 2"),
        remedy="set parallel.pp=1",
    ),
    _train("--set", "precision=bf16", "--ds-config", "zero0", found=("stage 0",), remedy="zero1"),
    _train("--dry-run", "--device", "h1000", found=("unknown --device 'h1000'",), remedy="Known devices: a100, h100"),
    _train("--device", "h100", found=("are for planning",), remedy="Add --dry-run"),
    _train("--dry-run", "--job-hours", "5", found=("--job-hours needs --device",), remedy="depends on it"),
    _train("--num-procs", "3", found=("3 data-parallel rank",), remedy="Change train.global_batch_rows"),
    _train("--ds-config", "zero9", found=("'zero9' does not exist",), remedy="pipeline, zero0, zero1, zero2, zero3"),
    _train(
        "--ds-config", "{broken_toml}", found=("is not a readable JSON file",), remedy="shipped one: pipeline, zero0"
    ),
    _train("--ds-config", "", found=("DeepSpeed file '' does not exist",), remedy="zero0, zero1"),
    _train("--ds-config", "{ds_list}", found=("expected a JSON object, got a list",), remedy="Write {...}"),
    _train("--ds-config", "{ds_deep}", found=("nested too deeply",), remedy="Correct it"),
    _train("--ds-config", "{ds_stage}", found=("{ds_stage}", "expected 0, 1, 2 or 3, got 7"), remedy="Correct it"),
    _train(
        "--ds-config",
        "{ds_block}",
        found=("zero_optimization", "expected a JSON object, got 2"),
        remedy="Write it with its keys",
    ),
    _train("--ds-config", "{ds_misspelt}", found=("'zero_optimisation'",), remedy="'zero_optimization'"),
    _train("--ds-config", "{ds_fp16}", found=("the block 'fp16'",), remedy="Remove the block"),
    _set("parallel.tp=2", found=("parallel.tp=2", "does not divide 1 rank"), remedy="--num-procs"),
    _train(
        *("--set", "parallel.tp=3", "--num-procs", "3"),
        found=("parallel.tp=3", "model.num_attention_heads=4", "model.num_key_value_heads=2"),
        remedy="Set parallel.tp to 1 or 2",
    ),
    _train(
        *("--ds-config", "zero0", "--set", "parallel.tp=2", "--num-procs", "2"),
        found=("parallel.tp=2", "ZeRO stage 0"),
        remedy="zero1.json",
    ),
    _set("parallel.pp=4", found=("parallel.pp=4", "does not divide 1 rank"), remedy="--num-procs"),
    _train(
        *("--set", "parallel.pp=4", "--num-procs", "4"),
        found=("parallel.pp=4", "2 blocks"),
        remedy="Set parallel.pp to at most 2",
    ),
    _train(
        *("--ds-config", "zero0", "--set", "parallel.pp=2", "--num-procs", "2"),
        found=("parallel.pp=2", "ZeRO stage 0"),
        remedy="pipeline.json",
    ),
    _train(
        *("--set", "parallel.pp=2", "--set", "parallel.stages=[1, 2]", "--num-procs", "2"),
        found=("parallel.stages=[1, 2]", "3 blocks", "num_hidden_layers=2"),
        remedy="leave parallel.stages out",
    ),
    _train(
        *("--set", "parallel.pp=2", "--set", "parallel.stages=[2]", "--num-procs", "2"),
        found=("parallel.stages=[2]", "1 stage", "parallel.pp=2"),
        remedy="Set parallel.pp=1",
    ),
    _set("parallel.stages=[2, 0]", found=("for parallel.stages.1:", "got 0"), remedy="above 0"),
    _set("parallel.stages=2", found=("for parallel.stages:", "got 2"), remedy="a list"),
    _set("parallel.tp=0", found=("for parallel.tp:", "got 0"), remedy="above 0"),
    _train("--num-procs", "0", found=("'--num-procs'",), remedy="at least 1"),
    _train("--threads", "0", found=("'--threads'",), remedy="at least 1"),
    _train("--num-procs", "two", found=("'--num-procs'",), remedy="an integer"),
    _train("--ds-config", "{ds_optimizer}", found=("the block 'optimizer'", "AdamW"), remedy="Remove the block"),
    _train("--ds-config", "{ds_batch}", found=("train_batch_size to 9", "needs 8"), remedy='Write "auto"'),
)

_CORPORA = (
    _set("data.train=nowhere://bucket/corpus", found=("nowhere://bucket/corpus",), remedy="s3://BUCKET/KEY"),
    _set("checkpoint.copy_to=nowhere://bucket", found=("nowhere://bucket",), remedy="or a folder"),
    _preprocess(
        *("nowhere://bucket/texts", "--tokenizer", "{tokenizer}", "--output", "out"),
        found=("nowhere://bucket/texts",),
        remedy="s3://BUCKET/KEY",
    ),
    _set("data.train=no/such/corpus", found=("no/such/corpus",), remedy="toolkit preprocess"),
    _set("data.validation={other}", found=("different tokenizers", "{other}"), remedy="same --tokenizer"),
    _set(
        'data.train=[{path="{corpus}",weight=1},{path="{other}",weight=1}]',
        found=("different tokenizers", "{other}"),
        remedy="same --tokenizer",
    ),
    _set(
        "data.train={prepared}",
        "data.validation={unended}",
        found=("{prepared}) have nothing in front, id 0 behind", "data.validation", "{unended}) have nothing in front"),
        remedy="same --eod, --no-eod and --no-bos",
    ),
    Case(("train", "{no_validation}", "--set", "data.train={maskless}"), ("mlm", "mask"), "--mask-token"),
    _set('data.train=[{path="a"}]', found=("run.toml", "a has no weight"), remedy="Give each corpus"),
    _set('data.train=[{path="a",weight=0}]', found=("data.train.0.weight",), remedy="above 0"),
    _set("data.train={damaged_manifest}", found=("corpus.json", "damaged"), remedy="again"),
    _set("data.train={short_shard}", found=("shard-00000.bin",), remedy="again"),
    _set(
        "data.windows=blocks",
        "data.sequence_length=100000",
        found=("one full row", "100000"),
        remedy="a shorter data.sequence_length",
    ),
    Case(("verify", "{damaged_shard}"), ("shard-00000.bin",), "again"),
    Case(("verify", "{empty}"), ("nothing to verify in {empty}", "no corpus, run"), "Give the folder of a corpus"),
    Case(("verify", "{decoder}"), ("a Hugging Face model",), "Give the folder of a corpus"),
    Case(("verify", "{damaged_checkpoint}"), ("{damaged_checkpoint}/weights-", "is damaged"), "Copy the checkpoint"),
    Case(("verify", "{damaged_run}"), ("step-00000010/weights-", "is damaged"), "Copy the checkpoint again"),
    Case(("verify", "{no_manifest}"), ("manifest.json is damaged",), "Copy the checkpoint again"),
    Case(("inspect", "{empty}"), ("nothing to inspect", "{empty}"), "Give the folder of a corpus"),
    Case(("inspect", "no/such"), ("no/such", "does not exist"), "Give the folder of a corpus"),
    Case(("inspect", "{prepared}", "--watch"), ("{prepared} is a corpus",), "give the folder above"),
    Case(("inspect", ".", "--watch", "--set", "data=3"), ("--watch shows runs",), "Leave one of them out"),
    Case(("inspect", "s3://a/b", "--watch"), ("--watch and --against are about folders",), "Leave them out"),
    Case(("inspect", ".", "--watch", "--against", "a"), ("--watch shows runs",), "Leave one of them out"),
    Case(("inspect", "{prepared}", "--against", "a"), ("--against is about", "{prepared} is a corpus"), "Leave it out"),
    Case(("inspect", "{prepared}", "--set", "lr.peak=1"), ("--set lr.peak=1",), "--set data.windows=blocks"),
    Case(("inspect", "{prepared}", "--set", "data=3"), ("--set data=3",), "--set data.windows=blocks"),
    Case(("inspect", "{prepared}", "--set", "data.window=x"), ("unknown key 'data.window'",), "'windows'"),
    Case(("inspect", "{prepared}", "--rows", "-1"), ("'--rows'",), "at least 0"),
    Case(("inspect", "{checkpoint}", "--set", "data.windows=blocks"), ("is a checkpoint",), "Leave it out"),
    Case(("verify", "{short_shard}"), ("1 of ", "shard-00000.bin: it has "), "Copy it again"),
    Case(("verify", "{damaged_manifest}"), ("corpus.json: its content",), "Copy it again"),
    Case(("verify", "{lost_shard}"), ("shard-00000.idx: it is missing",), "Copy it again"),
    _set("data.train={lost_shard}", found=("shard-00000.idx", "No such file"), remedy="copy it again, or rebuild it"),
)

_ADOPTED = (
    _adopt("{empty}/none", "--output", "out", found=("no such pair:", "none.bin"), remedy="without the ending"),
    _adopt("{pair}", "--output", "out", found=("{pair} is a folder",), remedy="Give the pairs in it"),
    _adopt("{pair}/z*", "--output", "out", found=("no pair matches", "z*"), remedy="Give pairs by"),
    _adopt("{pair}/half", "--output", "out", found=("half.idx is missing",), remedy="Copy both"),
    _adopt("{pair}/damaged", "--output", "out", found=("damaged.idx is damaged",), remedy="Copy it again"),
    _adopt("{prepared}/shard-00000", "--output", "{prepared}", found=("lies in the output",), remedy="another folder"),
    _adopt(
        "{prepared}/shard-00000",
        "--output",
        "{text}",
        found=("{text} cannot be written", "it is a file"),
        remedy="Name another folder",
    ),
    _adopt("{prepared}/shard-00000", "--output", "{documents}", found=("a.docx",), remedy="Name another folder"),
    _adopt("{prepared}/shard-00000", "--output", "out", "--eod", "<none>", found=("'<none>'", "384"), remedy="(--eod)"),
)

_UNBUILT = ("plan", "adapt", "estimate", "launch", "watch")
_TO = ("--tokenizer", "{tokenizer}", "--output", "out")
_MADE = ("--output", "made")
_PREPROCESS = (
    _preprocess("no-such.jsonl", *_TO, found=("'no-such.jsonl'",), remedy="Give files, folders or globs"),
    _preprocess(
        "{text}",
        "--tokenizer",
        "{empty}",
        "--output",
        "out",
        found=("no tokenizer.json",),
        remedy="Name the file itself",
    ),
    _preprocess(
        "{text}", "--tokenizer", "{tokenizer}", "--output", "{corpus}", found=("{corpus}",), remedy="--overwrite"
    ),
    _preprocess("{text}", *_TO, "--eod", "<none>", found=("'<none>'", "384"), remedy="Give one that is (--eod)"),
    _preprocess("{text}", *_TO, "--text-field", "body", found=("body",), remedy="--text-field"),
    _preprocess("{bad_gzip}", *_TO, found=("bad.jsonl.gz",), remedy="Download it again"),
    _preprocess("{bad_parquet}", *_TO, found=("bad.parquet",), remedy="Download it again"),
    _preprocess("{text}", *_TO, "--holdout", "2", found=("holdout", "2"), remedy="below 1"),
    _preprocess(
        "{text}", "--tokenizer", "{tokenizer}", "--output", "{text}/out", found=("out",), remedy="another folder"
    ),
    _preprocess(
        "{text}", "--tokenizer", "{tokenizer}", "--output", "/sys/out", found=("/sys/out",), remedy="another folder"
    ),
    _preprocess("{text}", found=("--tokenizer and --output",), remedy="for example"),
    _preprocess("{text}", "--output", "out", found=("--tokenizer is required",), remedy="for example"),
    _preprocess("", *_TO, found=("one of the sources is empty",), remedy="Give files"),
    _preprocess("~/text.jsonl", *_TO, found=("'~/text.jsonl'",), remedy="give the full path"),
    _preprocess("*.nope", *_TO, found=("no file matches '*.nope'",), remedy="Give a pattern that does"),
    _preprocess(
        "{documents}",
        *_TO,
        found=("{documents} has no supported files, but 1 file of other kinds",),
        remedy="end in .parquet",
    ),
    _preprocess("{document}", *_TO, found=("unknown format: {document}",), remedy="end in .parquet"),
    _preprocess("{empty}", *_TO, found=("{empty} is empty",), remedy="end in .parquet"),
    _preprocess("{no_rows}", *_TO, found=("{no_rows} gives no document: it is empty",), remedy="Remove it"),
    _preprocess("{broken_csv}", *_TO, found=("{broken_csv} is broken", "never closed"), remedy="Repair it"),
    _preprocess(
        "{swallowed_csv}", *_TO, found=("{swallowed_csv} is broken: in the record at line 3",), remedy="Repair"
    ),
    _preprocess("{one_object}", *_TO, found=("{one_object} gives no document",), remedy="jq -c ."),
    _preprocess("{broken_array}", *_TO, found=("{broken_array} is broken: Expecting value",), remedy="repair it"),
    _preprocess("{text}", *_TO, "--delimiter", "ab", found=("--delimiter", "ab"), remedy="one character"),
    _preprocess("{text}", *_TO, "--exclude", "*", found=("--exclude * leaves out all sources",), remedy="--exclude"),
    _preprocess("{empty_gzip}", *_TO, found=("{empty_gzip} is empty",), remedy="Download it again"),
    _preprocess("{text}", *_TO, "--eod", "x", "--no-eod", found=("contradict each other",), remedy="Remove one"),
    _preprocess("{text}", *_TO, "--mask-token", "x", found=("'x'",), remedy="auto, reserved, append"),
    _preprocess("{text}", *_TO, "--mask-token", "id:9999", found=("9,999", "383"), remedy="Use one that is"),
    _preprocess("{text}", *_TO, "--workers", "0", found=("--workers: expected",), remedy="at least 1"),
    _preprocess("{text}", *_TO, "--workers", "two", found=("'--workers'",), remedy="an integer"),
    _preprocess("{text}", *_TO, "--limit-documents", "0", found=("--limit-documents:", "got 0"), remedy="at least 1"),
    _preprocess("{text}", *_TO, "--max-bad-fraction", "2", found=("--max-bad-fraction:",), remedy="at most 1"),
    _preprocess("{text}", *_TO, "--txt-documents", "x", found=("got x",), remedy="'file', 'paragraph' or 'line'"),
    _preprocess("{text}", *_TO, "--engine", "x", found=("--engine:", "got x"), remedy="'auto' or 'reference'"),
    _preprocess("{text}", *_TO, "--text-field", "", found=("--text-field:", "got ''"), remedy="non-empty"),
    _preprocess(
        "{text}", *_TO, "--special-text", "x", found=("--special-text:", "got x"), remedy="'parse' or 'literal'"
    ),
    _preprocess("{text}", *_TO, "--sequence-length", "9999999999", found=("9999999999",), remedy="at most 1,048,576"),
    _preprocess(*("{text}", *_TO, "--near-duplicates", "7"), found=("--near-duplicates:", "got 7"), remedy="at most 1"),
    _preprocess("{text}", *_TO, "--without", "{text}", "--limit-tokens", "9", found=("read all",), remedy="Leave out"),
    _preprocess("{text}", *_TO, "--without", "no-such.csv", found=("'no-such.csv'",), remedy="Give files"),
    _preprocess("{text}", *_TO, "--executor", "x", found=("--executor:", "got x"), remedy="'slurm' or 'ray'"),
    *(
        _preprocess("{text}", *_TO, *limit, *tasks, found=("a corpus where only one",), remedy="Leave out the limit")
        for limit, tasks in (
            (("--limit-documents", "9"), ("--tasks", "2")),
            (("--limit-tokens", "9"), ("--executor", "ray")),
        )
    ),
    _preprocess("{text}", *_TO, "--subset", "x", found=("--subset x", "{text}"), remedy="Leave it out"),
    _preprocess(
        "{text}",
        "--tokenizer",
        "{tokenizer}",
        "--output",
        "held",
        "--holdout",
        "0.9999999",
        found=("all 40 documents", "0.9999999"),
        remedy="Hold out less",
    ),
    _preprocess(
        "{text}",
        "--tokenizer",
        "{tokenizer}",
        "--output",
        "{begun}",
        found=("{begun}", "--shard-tokens: 20 then", "2 gone"),
        remedy="--overwrite",
    ),
    _preprocess(
        "{text}",
        "--tokenizer",
        "{tokenizer}",
        "--output",
        "{begun_by_0_1}",
        found=("earlier version",),
        remedy="--overwrite",
    ),
    _preprocess("{text}", *_TO, found=("out/", "File too large"), remedy="resumes after the last", under="full disk"),
    *(
        _preprocess("{text}", "--tokenizer", name, "--output", "out", found=found, remedy=remedy)
        for name, found, remedy in (
            ("", ("--tokenizer:",), "non-empty"),
            ("no/such/folder", ("'no/such/folder'",), "Give one"),
            ("{broken_tokenizer}", ("{broken_tokenizer}", "can be read"), "again"),
            ("{text}", ("{text} is not a Hugging Face tokenizer.json",), "give another one"),
            ("{nameless_tokenizer}", ("no token ends a document",), "(--no-eod)"),
            ("{bad_parquet}", ("{bad_parquet} is not a known tokenizer format", "this is no"), "Give one of these"),
            ("{spec}", ("unknown scheme 'llama9'",), "Available schemes"),
            ("x" * 300, ("File name too long", "xxx"), "Choose another path"),
        )
    ),
)

_HUB = (
    _preprocess("org/gated", *_TO, found=("org/gated", "it is gated"), remedy="set HF_TOKEN", under="hub"),
    _preprocess(
        "org/missing", *_TO, found=("org/missing", "no repository of this name"), remedy="HF_TOKEN", under="hub"
    ),
    _preprocess("org/pictures", *_TO, found=("org/pictures has no Parquet",), remedy="hf download", under="hub"),
    _preprocess("org/any", *_TO, found=("org/any", "HF_HUB_OFFLINE is set"), remedy="Unset it", under="offline"),
    _preprocess("org/any", *_TO, found=("org/any", "failed ("), remedy="Check the network", under="unreachable"),
    *(
        _preprocess("{text}", "--tokenizer", name, "--output", "out", found=(name, found), remedy=remedy, under=under)
        for name, found, remedy, under in (
            ("org/gated", "is gated", "set HF_TOKEN", "hub"),
            ("org/missing", "no repository of this name", "Check the name", "hub"),
            ("org/any", "HF_HUB_OFFLINE is set", "Unset it", "offline"),
            ("org/any", "cannot be reached", "Check the network", "unreachable"),
        )
    ),
    _import("org/gated", "hf", found=("org/gated", "it is gated"), remedy="set HF_TOKEN", under="hub"),
    _import("org/missing", "hf", found=("org/missing", "no repository of this name"), remedy="HF_TOKEN", under="hub"),
    _import("org/any", "hf", found=("org/any", "HF_HUB_OFFLINE is set"), remedy="give a folder", under="offline"),
    _import("org/any", "hf", found=("org/any", "cannot be reached"), remedy="give a folder", under="unreachable"),
    _finetune("sc", "org/any", found=("could not load org/any",), remedy="Give a folder", under="offline"),
)

_GRIDS = (
    Case(("grid", "no-such.toml"), ("grid file 'no-such.toml' does not exist",), "Check the path"),
    Case(("grid", "{empty}"), ("{empty} is a directory",), "Give the .toml file"),
    Case(("grid", "{broken_toml}"), ("is not valid TOML", "line 1"), "Correct it"),
    Case(("grid", "{open_toml}"), ("is not valid TOML", "line 2, column 12"), "Correct it"),
    Case(("grid", "{latin_toml}"), ("not valid UTF-8", "byte 2"), "Save it as UTF-8"),
    Case(("grid", "{run}"), ("unknown key 'run'",), "Known keys here: grid, model, task, slurm"),
    Case(("grid", "{whole_grid}", "--workers", "0"), ("'--workers'",), "at least 1"),
    Case(("grid", "{whole_grid}", "--executor", "k8s"), ("unknown executor 'k8s'",), "Choose one of local, ray, slurm"),
    Case(
        ("grid", "{whole_grid}", "--executor", "slurm"),
        ("needs sbatch, which is not on the path",),
        "machine of a cluster",
        "no slurm",
    ),
    _on_ray("no ray", found=("needs the extra `cluster`", "import of ray halted"), remedy="pip install 'ray"),
    _on_ray("dead cluster", found=("RAY_ADDRESS=127.0.0.1:9", "Connection refused"), remedy="`ray start --head`"),
    _on_ray("clusterless address", found=("RAY_ADDRESS=ray://", "expected HOST:PORT"), remedy="correct RAY_ADDRESS"),
    *(
        Case(("grid", name, "--dry-run"), found, remedy)
        for name, found, remedy in (
            ("{modelless_grid}", ("for model:", "got []"), "at least 1"),
            ("{twin_models}", ("[[model]] 'm' is there twice",), "rename one"),
            ("{typed_wrong}", ("grid.learning_rates.0", "'1e-4'"), "without quotes"),
            ("{misspelt_option}", ("[[task]] t: unknown key 'batch_row'",), "Did you mean 'batch_rows'"),
            ("{unknown_kind}", ("unknown task 'ner'",), "Available kinds: "),
            ("{lost_data}", ("[[task]] t: train = 'no.tsv' does not exist",), "Check the path"),
            ("{lost_model}", ("no/such/model",), "Give a folder"),
            (
                "{steps_of_a_checkpoint}",
                ('steps = "all" stands for checkpoints of a run', "checkpoint is not the folder of a run"),
                "or leave steps out",
            ),
            ("{steps_of_a_hub_model}", ("[[model]] m: steps = [2]", "org/model is not a directory"), "Give the folder"),
            ("{steps_in_words}", ("invalid value '2 to 9' for model.0.steps",), 'expected "all", a list of steps, or'),
            (
                "{unkept_step}",
                ("steps = [10, 20]: step 20 of {started} is not a kept checkpoint", "nearest kept ones are 10."),
                "Give some of the kept steps",
            ),
            ("{empty_range}", ('steps = "11..20:5": {started} keeps none of them', "are 10."), "Give some of the kept"),
            (
                "{choiceless_set}",
                ("[[task]] t has 6 learning rates", "nq has no validation split"),
                "Give a single one in learning_rates, or protocol = 'paper'",
            ),
        )
    ),
    Case(("grid", "{file_as_grid_folder}"), ("the grid folder /dev/null/grid is not writable",), "Set grid.dir"),
)


def _study(name: str, *options: str, found: tuple[str, ...], remedy: str) -> Case:
    return Case(("study", f"{{{name}}}", *options), found, remedy)


_STUDIES = (
    Case(
        ("study", "labtop"),
        ("study file 'labtop' does not exist, and no preset has that name",),
        "Did you mean 'laptop'?",
    ),
    Case(("study", "{empty}"), ("{empty} is a directory",), "Give the .toml file"),
    _study("broken_toml", found=("is not valid TOML",), remedy="Correct it there"),
    _study(
        "run", found=("study is missing. A study needs [study] with base", "unknown key 'run'"), remedy="Known keys"
    ),
    _study("study_of_nothing", found=("models is missing",), remedy="A study needs at least one [[models]]"),
    _study("study_of_twins", found=("two models are called run-clm-6: block 1", "and block 2"), remedy="Take one out"),
    _study("study_of_equals", found=("run-clm-6", "run-clm-3-clm-6", "alike in all"), remedy="Take one out"),
    _study(
        "study_of_savings",
        found=("axes.checkpoint.every: a run may be resumed with",),
        remedy="Give it in [set]",
    ),
    _study("study_of_typos", found=("axes.lrs: 'lrs' is not a table of a run file",), remedy="Did you mean 'lr'?"),
    _study(
        "study_of_words", found=("'clm then mlm' is not an objective and a length",), remedy='Write for example "clm'
    ),
    _study("study_of_orphans", found=("from 'run-clm-8': no model",), remedy="Did you mean 'run-clm-6'?"),
    _study(
        "study_of_mistakes", found=("lr.peak -1.0: invalid", "lr.peak -2.0: invalid"), remedy="expected a value above 0"
    ),
    _study("study_of_lengths", found=("train.steps=7, but the phases",), remedy="Leave train.steps out"),
    _study("study_by_template", found=("no model has a label 'share'",), remedy="Did you mean 'clm_share'?"),
    _study("study_of_nobody", found=("study.adopt names nowhere",), remedy="Give one that has run.toml"),
    _study("study", "--executor", "k8s", found=("unknown executor 'k8s'",), remedy="Choose one of local, ray, slurm"),
    _study(
        "study", "--only", "run-clm-7", found=("no model is called 'run-clm-7'",), remedy="Did you mean 'run-clm-6'?"
    ),
    _study("study", "--show", "x", found=("no model is called 'x'",), remedy="Models: run-clm-6"),
    _study("study", "--why", "run-clm-6", "run-clm-6", found=("run-clm-6 twice",), remedy="Name two models"),
    _study("study", "--device", "h200", found=("--device is for an estimate",), remedy="Add --dry-run"),
)

_TOKENIZERS = (
    _tokenizer("{text}", *_MADE, "--vocab-size", "10", found=("--vocab-size:", "got 10"), remedy="at least 259"),
    _tokenizer("{text}", *_MADE, "--vocab-size", "many", found=("'--vocab-size'",), remedy="an integer"),
    _tokenizer("{text}", *_MADE, "--vocab-size", "300", "--txt-documents", "x", found=("got x",), remedy="'paragraph'"),
    _tokenizer(
        "{text}", *_MADE, "--vocab-size", "300", "--limit-documents", "0", found=("got 0",), remedy="at least 1"
    ),
    *(
        _tokenizer(*words, "--vocab-size", "300", found=found, remedy=remedy)
        for words, found, remedy in (
            (("none.txt", *_MADE), ("'none.txt'",), "Give files"),
            (("{no_rows}", *_MADE), ("the source {no_rows} gives no document: it is empty.",), "Remove it."),
            (("{text}", *_MADE, "--text-field", "x"), ("gives no document: 40 rows missing field",), "--text-field"),
            (("{bad_gzip}", *_MADE), ("{bad_gzip}",), "Download it again"),
            (("{text}", "--output", "{tokenizer}"), ("{tokenizer} already holds a tokenizer",), "--overwrite"),
            (("{text}", "--output", "{prepared}"), ("{prepared} holds other files",), "Give a new folder"),
            (("{text}", "--output", "{text}/t"), ("{text}", "Not a directory"), "Name another one"),
            (("{text}", "--output", "{text}"), ("could not create the folder {text}",), "Name another one"),
            (("{text}", "--output", "/sys/t"), ("/sys/t", "Operation not permitted"), "Name another one"),
        )
    ),
    _tokenizer(
        "{text}", *_MADE, "--vocab-size", "300", found=("made", "too large"), remedy="Free space", under="full disk"
    ),
)

_EXPORTS = (
    _export("{empty}", "hf", found=("{empty} holds no checkpoint",), remedy="Give a checkpoint"),
    _export("{text}", "hf", found=("{text} is not a directory",), remedy="Give a checkpoint"),
    _export("{decoder}", "hf", found=("{decoder} holds no checkpoint",), remedy="--from-hf {decoder} OUT imports it"),
    _export(
        *("{checkpoint}", "hf", "--form", "causal", "--architecture", "eurobert"),
        found=("--form causal writes a decoder", "--architecture eurobert is an encoder"),
        remedy="Use --architecture llama",
    ),
    _export(
        *("{checkpoint}", "hf", "--architecture", "modernbert"),
        found=("--architecture modernbert is not for a model of the family llama",),
        remedy="Use eurobert or llama",
    ),
    _export(
        *("{modernbert}", "hf", "--form", "causal", "--architecture", "modernbert"),
        found=("--form causal writes a decoder", "--architecture modernbert is an encoder"),
        remedy="Use --architecture modernbert-decoder, or --form bidirectional",
    ),
    _export(
        *("{modernbert}", "hf", "--architecture", "llama"),
        found=("--architecture llama is not for a model of the family modernbert",),
        remedy="Use modernbert or modernbert-decoder",
    ),
    _export("{no_manifest}", "hf", found=("{no_manifest}/manifest.json is damaged",), remedy="again"),
    _export("{damaged_checkpoint}", "hf", found=("weights-", "is damaged"), remedy="again"),
    _export("{damaged_run}", "hf", found=("no intact checkpoint", "step-00000010"), remedy="again"),
    _export("{checkpoint}", "{prepared}", found=("{prepared} already exists",), remedy="Name a new folder"),
    _export("{checkpoint}", "{text}/hf", found=("{text}/hf", "Not a directory"), remedy="Name another folder"),
    _export("{checkpoint}", "/sys/hf", found=("/sys/hf", "not permitted"), remedy="Name another folder"),
    _export("{checkpoint}", "hf", found=("hf cannot be written",), remedy="Free space", under="full disk"),
    _export("{checkpoint}", "hf", "--from-hf", found=("exactly one of --to-hf and --from-hf",), remedy="--to-hf CHECK"),
    _export("{checkpoint}", "hf", "--mask-token", "auto", found=("applies to --from-hf",), remedy="Remove it"),
    _export("{checkpoint}", "hf", "--head", "new", found=("--head applies to --from-hf",), remedy="Remove it"),
    _export("{checkpoint}", "hf", "--tokenizer", "x", found=("--tokenizer applies to --from-hf",), remedy="Remove it"),
    _export("{checkpoint}", "hf", "--form", "x", found=("'x'",), remedy="'bidirectional', 'causal'"),
    _export(
        "{checkpoint}",
        "hf",
        "--form",
        "causal",
        "--sentence-transformers",
        found=("--form causal writes a decoder",),
        remedy="Leave one of the two out",
    ),
)

_FETCH = "Download the model again"
_IMPORTS = (
    _import("nowhere", "hf", found=("'nowhere' is not a directory",), remedy="Give a folder that holds config.json"),
    _import("", "hf", found=("'' is not a directory",), remedy="Give a folder that holds config.json"),
    _import("~/model", "hf", found=("'~/model'",), remedy="give the full path"),
    _import("{empty}", "hf", found=("{empty}", "config.json"), remedy="Give"),
    _import("{checkpoint}", "hf", found=("{checkpoint} has no config.json",), remedy="--to-hf {checkpoint} OUT"),
    _import("{decoder}", "{prepared}", found=("{prepared} already exists",), remedy="Name a new folder"),
    _import("{decoder}", "hf", "--form", "causal", found=("apply to --to-hf",), remedy="Remove them"),
    _import("{decoder}", "hf", "--architecture", "llama", found=("apply to --to-hf",), remedy="Remove them"),
    _import("{decoder}", "hf", "--sentence-transformers", found=("apply to --to-hf",), remedy="Remove them"),
    _import("{decoder}", "hf", "--mask-token", "x", found=("'x'",), remedy="--mask-token"),
    _import("{decoder}", "hf", "--mask-token", "id:9999", found=("9,999",), remedy="--mask-token"),
    _import("{decoder}", "hf", "--mask-token", "reserved", found=("no reserved slot",), remedy="--mask-token"),
    _import("{decoder}", "hf", found=("File too large",), remedy="Free space", under="full disk"),
    _import("{gpt2}", "hf", found=("{gpt2}", "model_type='gpt2'"), remedy="Use a model without them, of one of these"),
    _import("{experts}", "hf", found=("a mixture of experts (num_local_experts=8)",), remedy="Use a model without"),
    _import("{broken_config}", "hf", found=("config.json cannot be read as JSON",), remedy=_FETCH),
    _import("{list_config}", "hf", found=("expected a JSON object, got a list",), remedy=_FETCH),
    _import("{no_weights}", "hf", found=("{no_weights} has no model.safetensors",), remedy="save_pretrained"),
    _import("{headless}", "hf", found=("no whole head: lm_head.weight missing",), remedy="Make a new head with --head"),
    _import("{adapter}", "hf", found=("{adapter} is a PEFT adapter of org/base",), remedy="merge_and_unload()"),
    _import("{pickled}", "hf", found=("pytorch_model.bin, a pickle",), remedy="save_pretrained"),
    _import("{cut_weights}", "hf", found=("is cut off",), remedy=_FETCH),
    _import("{no_norm}", "hf", found=("lacks model.norm.weight",), remedy=_FETCH),
    _import("{wide_norm}", "hf", found=("model.norm.weight has shape (65,)",), remedy=_FETCH),
    _import("{infinite_norm}", "hf", found=("non-finite values",), remedy="it again"),
    _import("{tied}", "hf", found=("ties lm_head.weight",), remedy="Set tie_word_embeddings to false"),
    _import("{few_rows}", "hf", found=("has 300 rows",), remedy="give the model the tokenizer"),
    _import("{decoder}", "hf", "--tokenizer", "./none", found=("no tokenizer at './none'",), remedy="Give one"),
    _import(
        *("{no_tokenizer}", "hf", "--tokenizer", "{tokenizer}"),
        found=("{no_tokenizer}", "no tokenizer:"),
        remedy="Write the one",
    ),
    _import("{no_tokenizer}", "hf", found=("{no_tokenizer}", "no tokenizer:"), remedy="Write the one"),
    Case(("convert", "{checkpoint}", "out"), ("--to-hf",), "--from-hf"),
    Case(("inspect", "{damaged_checkpoint}"), ("weights-", "is damaged"), "use another one"),
    Case(("inspect", "{no_manifest}"), ("manifest.json is damaged",), "use another one"),
    Case(("inspect", "{full}"), ("{full}", "run.toml"), "Look at one of its checkpoints"),
)

_SHEET = "Give a .tsv, .txt, .csv, .jsonl, .json or .parquet file"
_FINETUNED = (
    _finetune("xx", "{checkpoint}", found=("unknown task 'xx'",), remedy="Available kinds: "),
    _finetune(
        "sc",
        "{text}/x",
        "--label-column",
        "x",
        found=("could not load {text}/x",),
        remedy="Give a folder with config.json",
    ),
    _finetune("sc", "", found=("MODEL is an empty string",), remedy="Give a Hugging Face folder"),
    _finetune("sc", "{empty}", found=("{empty} is not a model", "a config.json"), remedy="Give a Hugging Face folder"),
    _finetune("sc", "{damaged_checkpoint}", found=("weights-", "is damaged"), remedy="Copy the checkpoint again"),
    _finetune("sc", "{broken_config}", found=("could not load {broken_config}",), remedy="Give a folder"),
    *(
        _finetune("sc", "{checkpoint}", *words, found=found, remedy=remedy)
        for words, found, remedy in (
            (("--train", "none.tsv"), ("none.tsv",), "Give"),
            (("--train", "{empty}"), ("{empty}", "a folder"), _SHEET),
            (("--train", "{sheet}"), ("{sheet}", ".xlsx"), _SHEET),
            (("--train", "{bad_parquet}"), ("{bad_parquet}",), "Download it again"),
            (("--train", "{one_class}"), ("{one_class}: every row has the label 'yes'",), "another class"),
            (("--train", "{ragged}"), ("{ragged}, line 2: 3 fields",), "Correct that line"),
            (("--train", "{no_header}"), ("{no_header}: the file is empty",), "names the columns"),
            (("--train", "{no_examples}"), ("{no_examples}: no examples in this file",), "Give one"),
            (("--train", "{twice_named}"), ("duplicate column names: text",), "Rename one"),
            (("--train", "{latin}"), ("{latin}: not valid UTF-8", "byte 11"), "Save it as UTF-8"),
            (("--train", "{bad_lines}"), ("{bad_lines}, line 1: not valid JSON",), "Correct that line"),
            (("--train", "{lists}"), ("{lists}, row 1", "got a number"), "one object per line"),
            (("--train", "{nothing}"), ("{nothing}, row 1", "found null"), "remove the row"),
            (("--train", "{quantities}"), ("{quantities}, row 1", "1.5"), "--label-column"),
            (("--train", "{label_lists}"), ("{label_lists}, row 1", "is a list, ['a']"), "--label-type set"),
            (("--train", "{quantities}", "--label-type", "set"), ("'label' must be a list", "1.5"), "remove the row"),
            (("--label-type", "number"), ("{table}, row 1: 'label' must be a finite number",), "remove the row"),
            (("--train", "{no_labels}", "--label-type", "set"), ("{no_labels}: no row has a label",), "Give a file"),
            (("--label-type", "numbers"), ("--label-type:", "got numbers"), "'class', 'number' or 'set'"),
            (("--label-type", "set", "--protocol", "paper"), ("'paper' has classes only",), "'standard'"),
            (("--protocol", "papers"), ("--protocol:", "got papers"), "'standard' or 'paper'"),
            (("--label-column", "class"), ("no column 'class'",), "--label-column"),
            (("--label-column", "text"), ("'text' is both text and label",), "--label-column"),
            (("--text-columns", "a,b,c"), ("--text-columns:", "got a,b,c"), "a list of at most 2"),
            (("--lr", "-1"), ("--lr:", "got -1.0"), "above 0"),
            (("--lr", "fast"), ("'--lr'",), "a number"),
            (("--lr", "nan"), ("--lr:", "got nan"), "a finite number"),
            (("--steps", "0"), ("--steps:", "got 0"), "at least 1"),
            (("--set", "batch_row=4"), ("unknown key 'batch_row'",), "'batch_rows'"),
            (("--set", "batch_rows=many"), ("batch_rows", "'many'"), "an integer"),
            (("--set", "batch_rows"), ("--set 'batch_rows' is not of the form key=value",), "Write, for example"),
            (("--set", "micro_rows=5"), ("micro_rows = 5 does not divide batch_rows = 32",), "Choose a divisor"),
            (("--set", "seed=1", "--seed", "2"), ("--seed and --set seed are both given",), "Leave one of the two out"),
            (("--set", "epochs=1", "--steps", "2"), ("steps and epochs are both given",), "Leave one of the two out"),
            (("--set", "metric=mcf"), ("unknown metric 'mcf' for the task sc", "'mcc'"), "accuracy, f1_macro, mcc"),
            (("--output", "{text}"), ("could not create the output folder {text}",), "--output"),
            (("--output", "/sys/out"), ("could not create the output folder /sys/out",), "--output"),
        )
    ),
    _finetune("qa", "{checkpoint}", "--label-type", "set", found=("--label-type",), remedy="Leave it out"),
    _finetune("sc", "{adapter}", found=("{adapter} is a PEFT adapter of org/base",), remedy="merge_and_unload()"),
    _finetune("ir", "{checkpoint}", "--set", "micro_rows=8", found=("micro_rows does not split",), remedy="chunk_rows"),
    *(
        _finetune("qa", "{checkpoint}", "--train", file, found=found, remedy=remedy)
        for file, found, remedy in (
            ("none.json", ("none.json: no such file",), "SQuAD's .json"),
            ("{table}", ("{table}: expected a file of questions", "a .tsv file"), "SQuAD's .json"),
            ("{no_squad_data}", ("{no_squad_data}: 'data' has to be a list", "found only 'rows'"), "SQuAD's .json"),
            ("{no_questions}", ("{no_questions}: no questions",), "SQuAD's .json"),
            ("{bad_offset}", ("{bad_offset}, question 'q7'", "expected 'Ada', found 'da '"), "correct it"),
            ("{two_minds}", ("question 'q7': is_impossible is true, but it has 1 answer",), "Correct one of the two"),
        )
    ),
    _finetune(
        "sc",
        "{checkpoint}",
        "--train",
        "{quantities}",
        "--label-type",
        "number",
        test="{quantities}",
        found=("{quantities}: every row has the number 1.5",),
        remedy="Add rows",
    ),
    _finetune("sc", "{checkpoint}", test="{other_label}", found=("'maybe'", "'no', 'yes'"), remedy="--bad-rows skip"),
    _finetune(
        "sc", "{checkpoint}", "--bad-rows", "drop", found=("--bad-rows:", "got drop"), remedy="'error' or 'skip'"
    ),
    Case(("predict", "{empty}", "{table}", "--output", "out"), ("{empty} has no finetuning.json",), "toolkit finetune"),
)

_SCORES = (
    _score("{checkpoint}", found=("missing option '--pairs'",), remedy="For example: toolkit score"),
    _score("{checkpoint}", "--pairs", "no.jsonl", found=("no.jsonl: no such file",), remedy="Give a .tsv"),
    _score("{checkpoint}", "--pairs", "{empty}", found=("no .jsonl or .parquet file",), remedy="Give the folder of"),
    _score("{checkpoint}", "--pairs", "{table}", found=("{table}, row 1", "'sentence_good'"), remedy="remove the row"),
    _score(
        "{checkpoint}",
        "--pairs",
        "{table}",
        "--form",
        "both",
        found=("--form", "got both"),
        remedy="'causal' or 'masked'",
    ),
    _score(
        *("{headless}", "--pairs", "{table}"),
        found=("{headless} has no head that predicts tokens (lm_head.weight missing)",),
        remedy="Use the language model that it was made from",
    ),
    Case(("finetune", "pairs", "{checkpoint}", "--output", "out"), ("pairs trains nothing",), "toolkit score"),
)

_DATASETS_BY_NAME = (
    _named(found=("no data to fine-tune on: --train and --test missing",), remedy="name of a data set: sst2, qqp"),
    _named("--train", "{table}", found=("--test missing",), remedy="Give --train and --test, or --dataset"),
    _named(
        "--dataset",
        "sst2",
        "--train",
        "{table}",
        found=("--dataset sst2", "--train is given"),
        remedy="Leave out --train",
    ),
    _named("--dataset", "sst", found=("unknown data set 'sst'",), remedy="Did you mean 'sst2'?"),
    _named("--dataset", "squad", found=("squad is for the task qa, not for sc",), remedy="`toolkit finetune qa`"),
    *(
        _named(
            "--dataset",
            "sst2",
            found=("could not download the data set nyu-mll/glue", reason),
            remedy="give files of your own (--train and --test, in place of --dataset)",
            under=under,
        )
        for reason, under in (
            ("HF_HUB_OFFLINE is set", "offline"),
            ("the connection to", "unreachable"),
            ("no repository of this name", "hub"),
        )
    ),
)

_SEARCHED = tuple(
    Case(("finetune", "ir", "{checkpoint}", "--train", train, "--test", test, "--output", "out"), found, remedy)
    for train, test, found, remedy in (
        ("{collection}", "none", ("none: no such file or directory",), "Give a BEIR folder"),
        ("{table}", "{qrels}", ("{table}: not a collection of documents and queries",), "Give a BEIR folder"),
        ("{collection}", "{collection}", ("qrels/test.tsv: no such file", "no_judgements.tsv"), "Name the file"),
        ("{collection}", "{no_judgements}", ("{no_judgements}: no judgements in this file",), "Give one"),
        ("{collection}", "{unknown_query}", ("{unknown_query}: no judgements in this file of queries in",), "Give one"),
        ("{collection}", "{spaced}", ("line 1: expected query id, document id and grade",), "Correct that line"),
        ("{collection}", "{nothing_relevant}", ("no document is judged relevant",), "Give another file"),
        ("{twice_collection}", "{qrels}", ("{twice_collection_corpus}, line 5: '_id' '0'",), "Remove one"),
        ("{qrels}", "{qrels}", ("{qrels}: training needs at least two queries",), "Add queries"),
    )
)

_TAGGED = (
    *(
        _finetune("tc", "{checkpoint}", "--train", train, found=found, remedy=remedy, test="{tagged}")
        for train, found, remedy in (
            ("none.conll", ("none.conll: no such file",), "Give CoNLL columns"),
            ("{empty}", ("{empty}: is a folder",), "Give CoNLL columns"),
            ("{latin}", ("{latin}: not valid UTF-8", "byte 11"), "Save it as UTF-8"),
            ("{table}", ("{table}: no tag is O", "found: label, no, yes"), "add --label-type class"),
            ("{one_column}", ("{one_column}, line 1: no tags",), "Give a training file with a tag for each token"),
            ("{ragged_tags}", ("{ragged_tags}, line 2: 3 columns, but the first row has 2",), "Correct that line"),
            ("{wrong_tag}", ("{wrong_tag}, line 2: 'PER' is not a tag",), "--bad-rows skip"),
            ("{mixed_tags}", ("{mixed_tags}", "BIOES", "BILOU"), "Write all tags in one scheme"),
            ("{no_entities}", ("{no_entities}: every tag is O",), "with entities"),
            ("{no_sentences}", ("{no_sentences}: no sentences in this file",), "Give CoNLL columns"),
        )
    ),
    _finetune(
        "tc",
        "{checkpoint}",
        *("--train", "{tagged}"),
        found=("{other_type}, line 3", "'MISC' does not occur", "{tagged}, which has PER"),
        remedy="Replace such tags by O",
        test="{other_type}",
    ),
)

_NOT_YET = tuple(
    Case((name, "x", "--at-all"), (f"`toolkit {name}` is not available yet",), "toolkit --help") for name in _UNBUILT
)


def _report(name: str, *options: str, found: tuple[str, ...], remedy: str) -> Case:
    return Case(("report", f"{{grid_{name}}}", *options), found, remedy)


_AGAIN = "Run `toolkit grid` again"
_REPORTS = (
    Case(("report", "nowhere"), ("'nowhere' does not exist",), "Give the folder of a grid or of a run"),
    Case(("report", "{text}"), ("is not a directory",), "Give the folder of a grid or of a run"),
    Case(("report", "{empty}"), ("is neither a grid", "nor a run"), "`toolkit train` or `toolkit study` wrote"),
    _report("whole", "{empty}", found=("is neither a grid", "nor a run"), remedy="Give a folder"),
    _report("whole", "--output", "{text}", found=("output folder", "is a file"), remedy="Choose another one"),
    _report("whole", "--output", "{tokenizer_only}", found=("holds other files",), remedy="Choose a new folder"),
    _report("whole", "{grid_again}", found=("both have cells of the model 'a' and the task 't'",), remedy="Rename one"),
    _report("whole", "--baseline", "bert", found=("--baseline 'bert' is not in the report",), remedy="Available: a"),
    _report("no_cells", found=("results.jsonl has no finished cell",), remedy="give smaller learning_rates"),
    _report("unselected", found=("selected.json does not exist",), remedy=_AGAIN),
    _report("broken_row", found=("results.jsonl: row 2 is not valid JSON",), remedy=_AGAIN),
    _report("number_row", found=("row 1 is a number, expected an object",), remedy=_AGAIN),
    _report("seedless_row", found=("row 1 has no 'seed'",), remedy=_AGAIN),
    _report("texted_row", found=('test.accuracy = "0.5", expected a finite number',), remedy=_AGAIN),
    _report("nan_row", found=("test.accuracy = NaN, expected a finite number",), remedy=_AGAIN),
    _report("other_metric", found=("no test score of its metric 'f1'",), remedy=_AGAIN),
    _report("twice_row", found=("rows 1 and 2 are of the same cell", "seed 0"), remedy=_AGAIN),
    _report("broken_selected", found=("selected.json is damaged",), remedy=_AGAIN),
    _report("other_selected", found=("learning rate 0.5 for the model 'a'", "has no cell"), remedy=_AGAIN),
    _report("broken_toml", found=("grid.toml is damaged",), remedy=_AGAIN),
    _report("stepless", found=("has no logged step",), remedy="Train the run further"),
)
_COMMANDS = (
    Case(("trian", "x"), ("no such command 'trian'",), "Did you mean 'train'"),
    Case(("verify", "x" * 300), ("File name too long", "xxx"), "Choose another path"),
)

_INITIAL = (
    _set('init.from="x"', found=("init.from=x is not a directory",), remedy="toolkit convert --from-hf"),
    _set('init.from="{empty}"', found=("{empty}",), remedy="toolkit convert --from-hf"),
    _set('init.from="{decoder}"', found=("It is a Hugging Face model",), remedy="toolkit convert --from-hf {decoder}"),
    _set('init.from="{no_manifest}"', found=("manifest.json is damaged",), remedy="Copy the checkpoint again"),
    _set('init.from="{checkpoint}"', found=("init.from ({checkpoint})", "different tokenizers"), remedy="--tokenizer"),
    _set('init.optimizer="keep"', found=("init.from is missing",), remedy="leave [init] out"),
    _set(
        'init.from="{checkpoint}"',
        'init.optimizer="new"',
        found=("init.optimizer", "'new'"),
        remedy="'keep' or 'reset'",
    ),
    _set(
        'init.from="{checkpoint}"',
        'init.grow="tile"',
        'init.optimizer="keep"',
        found=('init.optimizer="keep"', 'init.grow="tile" makes other parameters'),
        remedy='Set init.optimizer = "reset"',
    ),
    Case(
        ("train", "{no_model}", "--set", 'init.form="x"'),
        ("unknown key 'init.form'", "model is missing"),
        "Did you mean 'from'",
    ),
)

_TAKEN = "{started}/checkpoints/step-00000010"
_FORKS = (
    _set('fork.from="x"', found=("fork.step is missing",), remedy="Updates made by then"),
    _set("fork={from='x', step=4}", found=("fork.from=x, which a fork needs until it",), remedy="use another one"),
    _set(f"fork={{from='{_TAKEN}', step=9}}", found=("is of step 10, and fork.step=9",), remedy="Make them equal"),
    _set(f"fork={{from='{_TAKEN}', step=20}}", found=("fork.step=20", "has 20 steps"), remedy="Fork earlier"),
    _set(f"fork={{from='{_TAKEN}', step=10}}", found=("data.train", "and fork.from"), remedy="toolkit preprocess"),
    _set("branch.lr=rewarm", found=("[branch] is of a tail",), remedy="--config TAIL.toml"),
    _set("checkpoint.keep_at=[-1]", found=("for checkpoint.keep_at.0:", "got -1"), remedy="at least 0"),
    _set("checkpoint.keep_best=clmm", found=("clmm has no validation loss",), remedy="Name one of: clm, mlm"),
    _set("schedule.1.lr_warmup_steps=3", found=("lr_warmup_steps = 3 and lr = 'keep'",), remedy='Set lr = "rewarm"'),
    _set(
        "schedule.1={objective='mlm', steps=10, lr='rewarm', lr_decay_steps=2}",
        "lr={kind='cosine'}",
        found=("schedule.1.lr_decay_steps=2", 'lr.kind="cosine"'),
        remedy="Leave it out",
    ),
    _train("--until", "0", found=("--until",), remedy="at least 1"),
    _train("--until", "5", "--dry-run", found=("--until", "--dry-run trains nothing"), remedy="Leave one"),
)

_MERGES = (
    Case(("merge", "{checkpoint}"), ("missing option '--output'",), "For example: toolkit merge"),
    _merge("{checkpoint}", found=("two checkpoints or more", "{checkpoint}"), remedy="with --steps A..B"),
    _merge("{checkpoint}", "no/such", found=("no/such is not a directory",), remedy="Give a checkpoint"),
    _merge("{checkpoint}", "{damaged_checkpoint}", found=("weights-", "is damaged"), remedy="Copy the checkpoint"),
    _merge("{checkpoint}", "{started}", found=("{started}", "model.vocab_size: 384 and 97"), remedy="in common"),
    _merge("{started}", "--steps", "11..20", found=("keeps none of them", "are 10."), remedy="Give some of the kept"),
    _merge("{checkpoint}", "--steps", "all", found=("{checkpoint} is not the",), remedy="or leave --steps out"),
    _merge("{started}", "--steps", "9..2", found=("invalid value for --steps", "'9..2'"), remedy="expected A..B"),
    _merge("{checkpoint}", "{started}", "--output", "{prepared}", found=("already exists",), remedy="Name a new"),
)

_WRITTEN = (
    _set("run.dir={text}/run", found=("the run folder", "is not writable"), remedy="Set run.dir"),
    _set("run.dir=out", found=("could not write out/", "File too large"), remedy="Free space", under="full disk"),
)

_RESUMED = (
    _set(
        "run.dir={started}",
        found=("was started with other settings", "lr.peak: was 0.02, now 0.01"),
        remedy="Resume with the same ones",
    ),
)

LAUNCHED = (
    # With the settings that it was started with; others are refused before that.
    _set(
        "run.dir={damaged_run}",
        "lr.peak=2e-2",
        found=("step-00000010", "is intact"),
        remedy="start again in another run.dir",
    ),
    _train(
        "--ds-config",
        "{ds_unknown}",
        found=("DeepSpeed rejects its configuration", "unknown key 'nonsense'"),
        remedy="Correct the file",
    ),
)
"""Those that only ranks can meet: each starts the launcher, which takes seconds."""

CASES = (
    *_SETTINGS,
    *_MOVED,
    *_PARALLEL,
    *_CORPORA,
    *_ADOPTED,
    *_PREPROCESS,
    *_HUB,
    *_TOKENIZERS,
    *_EXPORTS,
    *_IMPORTS,
    *_FINETUNED,
    *_SCORES,
    *_DATASETS_BY_NAME,
    *_GRIDS,
    *_STUDIES,
    *_SEARCHED,
    *_TAGGED,
    *_INITIAL,
    *_FORKS,
    *_MERGES,
    *_WRITTEN,
    *_RESUMED,
    *_NOT_YET,
    *_REPORTS,
    *_COMMANDS,
)

ELSEWHERE = (
    ("work/test_ray.py", "test_a_cluster_without_room_is_refused"),
    ("work/test_ray.py", "test_a_busy_cluster_is_refused"),
    ("work/test_ray.py", "test_a_machine_that_does_not_see_the_folder_is_refused"),
    ("cli/test_train_signals.py", "test_ctrl_c_leaves_with_130_and_no_traceback"),
    ("cli/test_launch.py", "test_what_the_launcher_cannot_take_is_refused"),
    ("training/test_non_finite.py", "test_the_run_ends_and_the_rows_are_named"),
    ("training/test_initial_weights.py", "test_a_run_that_does_not_fit_its_first_weights_is_refused_before_any_rank"),
    ("resume/test_resume.py", "test_other_settings_are_refused_by_name"),
    ("resume/test_resume.py", "test_another_corpus_in_the_same_place_is_refused"),
    ("resume/test_resume.py", "test_other_weights_are_refused_by_name"),
    ("resume/test_fork.py", "test_a_run_that_parted_earlier_is_refused"),
    ("quickstart/test_program.py", "test_a_second_quickstart_in_the_folder_is_refused"),
    ("checkpoint/test_checkpoint_errors.py", "test_a_full_disk_at_any_block_leaves_nothing_and_says_so"),
    ("conversion/test_merging.py", "test_what_makes_no_mean_is_refused"),
    ("training/test_initial_weights.py", "test_a_run_starts_from_a_merge_and_resumes_from_none"),
    ("conversion/test_to_hf_refusals.py", "test_a_full_disk_is_told_and_nothing_is_left"),
    ("preprocess/test_preprocess_restart.py", "test_a_full_disk_is_said_and_then_it_goes_on"),
    ("preprocess/test_preprocess_hub.py", "test_the_command_leaves_with_2_and_one_message"),
    ("run/test_load.py", "test_several_findings_come_in_one_message"),
)
"""Tests, by file and name, of what the contract refuses and no command line in one process can show."""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Place(Path(folder)) as place:
        for case in (*CASES, *LAUNCHED):
            code, said = (call_apart if case in LAUNCHED else call)(case, place)
            print(f"$ toolkit {case.name}\n{said.replace(folder, '...')}[exit {code}]\n")
