"""The errors that a user can cause, as a table: a command line, and what its message has to say.

    python -m tests.cli.errors        prints every message as a user sees it, to be read aloud

A case's words may name what `Place` lays down, as {corpus}, {run}, {text} and so on.
"""

import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from toolkit.cli.main import main
from toolkit.model import Encoder, initialize_, model_settings
from toolkit.settings import load_run
from toolkit.settings.resume import snapshot
from toolkit.testing.checkpoints import model_states, write_checkpoint
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.testing.runs import write_run
from toolkit.testing.text import sample_documents, tiny_tokenizer

__all__ = ["CASES", "LAUNCHED", "Case", "Place", "call", "call_apart"]


@dataclass(frozen=True)
class Case:
    """A command line that is refused.

    Attributes:
        words: after `toolkit`.
        found: pieces of the message that say what was asked and found.
        remedy: a piece of the message that says what to do.
    """

    words: tuple[str, ...]
    found: tuple[str, ...]
    remedy: str

    @property
    def name(self) -> str:
        """For test reports."""
        return " ".join(self.words).replace("{", "").replace("}", "")


def _train(*options: str, found: tuple[str, ...], remedy: str) -> Case:
    return Case(("train", "{run}", *options), found, remedy)


def _set(*values: str, found: tuple[str, ...], remedy: str) -> Case:
    return _train(*(word for value in values for word in ("--set", value)), found=found, remedy=remedy)


def _preprocess(*words: str, found: tuple[str, ...], remedy: str) -> Case:
    return Case(("preprocess", *words), found, remedy)


_SETTINGS = (
    Case(("train", "no-such.toml"), ("run file 'no-such.toml' does not exist",), "Give a .toml file or one of: "),
    Case(("train", "{broken_toml}"), ("is not valid TOML", "line 1"), "Correct it"),
    _set("train.micro_batch_row=2", found=("unknown key 'train.micro_batch_row'",), remedy="'micro_batch_rows'"),
    _set("train.steps=ten", found=("train.steps", "'ten'"), remedy="valid integer"),
    _set("objectives.mlm.mask_ratio=1.4", found=("objectives.mlm.mask_ratio", "1.4"), remedy="less than or equal to 1"),
    _set("objectives.mlm.mask_ratio=0", found=("objectives.mlm.mask_ratio", "0"), remedy="greater than 0"),
    _set("schedule=[]", found=("the schedule is empty",), remedy="Give at least one [[schedule]]"),
    _set("schedule.0.tokens=5", found=("'clm' has steps = 10 and tokens = 5",), remedy="exactly one of"),
    _set(
        'schedule=[{objective="clm",fraction=0.5},{objective="mlm",fraction=0.4}]',
        "train.steps=20",
        found=("0.5 + 0.4 = 0.9",),
        remedy="have to sum to 1",
    ),
    _set('schedule=[{objective="clm",fraction=1.0}]', found=("shares of train.steps",), remedy="Set train.steps"),
    _set("train.steps=30", found=("10 (clm) + 10 (mlm) = 20 steps",), remedy="Leave train.steps out"),
    _set("schedule.0.objective=clmm", found=("'clmm'",), remedy="Did you mean 'clm'"),
    _set("model.preset=120m", found=("model.preset='120m'",), remedy="There are: "),
    _set("model.num_attention_heads=5", found=("hidden_size=32", "num_attention_heads=5"), remedy="Change one"),
    _set("model.vocab_size=50", found=("model.vocab_size", "50", "97"), remedy="Leave model.vocab_size out"),
    _set("lr.peak=-1", found=("lr.peak", "-1"), remedy="greater than 0"),
    _set("lr.warmup_steps=30", found=("lr.warmup_steps (30)", "20 steps"), remedy="Make one of them shorter"),
    _set(
        "train.micro_batch_rows=3",
        found=("train.micro_batch_rows=3", "does not divide 8"),
        remedy="Choose rows and ranks",
    ),
    Case(("train", "{no_validation}", "--set", "eval.every=5"), ("eval.every=5",), "Set data.validation"),
    _set("log.wandb=true", found=("log.wandb = true", "not installed"), remedy="pip install wandb"),
    Case(("train", "{no_data}"), ("data is missing",), "toolkit preprocess"),
    Case(("train", "{no_schedule}"), ("schedule is missing",), "[[schedule]]"),
    Case(("train", "{no_model}"), ("model is missing",), "model.preset"),
)

_PARALLEL = (
    _set("parallel.pp=4", found=("parallel.pp=4", "ZeRO stage 2"), remedy="set parallel.pp=1"),
    _train("--set", "precision=bf16", "--ds-config", "zero0", found=("stage 0",), remedy="zero1"),
    _train("--num-procs", "3", found=("3 data-parallel rank",), remedy="Choose rows and ranks"),
    _train("--ds-config", "zero9", found=("'zero9' does not exist",), remedy="zero0, zero1, zero2, zero3"),
    _train("--ds-config", "{broken_toml}", found=("is not a readable JSON file",), remedy="shipped one: zero0"),
    _train("--ds-config", "{ds_optimizer}", found=("the block 'optimizer'", "AdamW"), remedy="Take the block out"),
    _train("--ds-config", "{ds_batch}", found=("train_batch_size to 9", "needs 8"), remedy='Write "auto"'),
)

_CORPORA = (
    _set("data.train=no/such/corpus", found=("no/such/corpus",), remedy="toolkit preprocess"),
    _set("data.validation={other}", found=("different tokenizers", "{other}"), remedy="same --tokenizer"),
    _set(
        'data.train=[{path="{corpus}",weight=1},{path="{other}",weight=1}]',
        found=("different tokenizers", "{other}"),
        remedy="same --tokenizer",
    ),
    Case(("train", "{no_validation}", "--set", "data.train={maskless}"), ("mlm", "mask"), "--mask-token"),
    _set('data.train=[{path="a"}]', found=("run.toml",), remedy="data.train.0.weight is missing."),
    _set('data.train=[{path="a",weight=0}]', found=("data.train.0.weight = 0 is refused",), remedy="greater than 0"),
    _set("data.train={damaged_manifest}", found=("corpus.json", "damaged"), remedy="again"),
    _set("data.train={short_shard}", found=("shard-00000.bin",), remedy="again"),
    _set(
        "data.windows=blocks", "data.sequence_length=100000", found=("one whole row", "100000"), remedy="shorter rows"
    ),
    Case(("verify", "{damaged_shard}"), ("shard-00000.bin",), "again"),
    Case(("verify", "{empty}"), ("no corpus at",), "toolkit preprocess"),
    Case(("inspect", "{empty}"), ("nothing to inspect", "{empty}"), "Give the folder of a corpus"),
    Case(("inspect", "no/such"), ("no/such", "does not exist"), "Give the folder of a corpus"),
    Case(
        ("adopt", "{empty}/none", "--tokenizer", "{tokenizer}", "--output", "out"),
        ("There is no pair", "none.bin"),
        "without the ending",
    ),
)

_UNBUILT = ("branch", "plan", "grid", "doctor", "watch")
_SCORED = ("--train", "{table}", "--test", "{table}", "--output", "out")
_TO = ("--tokenizer", "{tokenizer}", "--output", "out")
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
    _preprocess("{bad_gzip}", *_TO, found=("bad.jsonl.gz",), remedy="Fetch it again"),
    _preprocess("{bad_parquet}", *_TO, found=("bad.parquet",), remedy="Fetch it again"),
    _preprocess("{text}", *_TO, "--holdout", "2", found=("holdout", "2"), remedy="less than"),
    _preprocess(
        "{text}", "--tokenizer", "{tokenizer}", "--output", "{text}/out", found=("out",), remedy="another folder"
    ),
    _preprocess(
        "{text}", "--tokenizer", "{tokenizer}", "--output", "/sys/out", found=("/sys/out",), remedy="another folder"
    ),
)

_MODELS = (
    Case(("convert", "--to-hf", "{empty}", "hf"), ("holds no checkpoint",), "step-NNNNNNNN"),
    Case(("convert", "--to-hf", "{damaged_checkpoint}", "hf"), ("weights-", "is damaged"), "again"),
    Case(("convert", "--to-hf", "{checkpoint}", "{corpus}"), ("{corpus} exists already",), "Name a new folder"),
    Case(("inspect", "{damaged_checkpoint}"), ("weights-", "is damaged"), "use another one"),
    Case(("finetune", "sc", "{empty}", *_SCORED), ("{empty} holds no config.json",), "toolkit convert --to-hf"),
    Case(
        ("finetune", "sc", "{checkpoint}", "--train", "none.tsv", "--test", "{table}", "--output", "out"),
        ("none.tsv",),
        "Give",
    ),
    Case(
        ("finetune", "sc", "{checkpoint}", *_SCORED, "--label-column", "class"),
        ("no column 'class'",),
        "--label-column",
    ),
    Case(("finetune", "xx", "{checkpoint}", *_SCORED), ("'xx'",), "known: sc"),
)

_NOT_YET = tuple(Case((name, "x", "--at-all"), (f"`toolkit {name}`",), "not available yet") for name in _UNBUILT)

_INITIAL = (
    _set('init.from="x"', found=("init.from=x is no folder",), remedy="toolkit convert --from-hf"),
    _set('init.from="{empty}"', found=("{empty}",), remedy="toolkit convert --from-hf"),
    _set(
        'init.from="{checkpoint}"',
        'init.optimizer="new"',
        found=("init.optimizer", "'new'"),
        remedy="'keep' or 'reset'",
    ),
    Case(("convert", "--from-hf", "nowhere", "hf"), ("nowhere is no folder",), "Give a folder that holds config.json"),
    Case(("convert", "--from-hf", "{empty}", "hf"), ("{empty}", "config.json"), "Give"),
    Case(("convert", "{checkpoint}", "out"), ("--to-hf",), "--from-hf"),
)

LAUNCHED = (
    _set("run.dir={full}", found=("No space left on device",), remedy="Free space or choose another folder"),
    _set("run.dir={text}/run", found=("the run folder", "cannot be written"), remedy="Set run.dir"),
    _set(
        "run.dir={started}",
        found=("was started with other settings", "lr.peak: was 0.02, now 0.01"),
        remedy="Resume with the same ones",
    ),
)
"""Those that only ranks can meet: each starts the launcher, which takes seconds."""

CASES = (*_SETTINGS, *_PARALLEL, *_CORPORA, *_PREPROCESS, *_MODELS, *_INITIAL, *_NOT_YET)


class Place:
    """A folder with one of everything, whole and broken; `names` maps what cases call it to its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, str] = {}
        self._lay_down_runs()
        self._lay_down_corpora()
        self._lay_down_text()
        self._lay_down_models()

    def fill(self, words: str) -> str:
        """Words with every {name} replaced by its path."""
        for name, path in self.names.items():
            words = words.replace(f"{{{name}}}", path)
        return words

    def _add(self, name: str, path: Path) -> Path:
        self.names[name] = str(path)
        return path

    def _write(self, name: str, file: str, text: str) -> Path:
        path = self._add(name, self.folder / file)
        path.write_text(text, encoding="utf-8")
        return path

    def _lay_down_runs(self) -> None:
        run = self._add("run", write_run(self.folder)).read_text()
        self._add("empty", self.folder / "empty").mkdir()
        self._write("broken_toml", "broken.toml", "[run\n")
        head, data, rest = run[: run.index("[data]")], run[run.index("[data]") :], run[run.index("[[schedule]]") :]
        self._write("no_data", "no_data.toml", head + rest)
        self._write("no_schedule", "no_schedule.toml", head + data[: data.index("[[schedule]]")])
        self._write("no_model", "no_model.toml", run[: run.index("[model]")] + data)
        validation = f'validation = "{self.folder / "validation"}"\n'
        self._write("no_validation", "no_validation.toml", run.replace(validation, ""))
        full = self._add("full", self.folder / "full")
        full.mkdir()
        (full / "run.toml").symlink_to("/dev/full")
        self._write("ds_optimizer", "ds_optimizer.json", json.dumps({"optimizer": {"type": "Adam"}}))
        self._write("ds_batch", "ds_batch.json", json.dumps({"train_batch_size": 9}))

    def _lay_down_corpora(self) -> None:
        documents = random_documents(160, vocabulary_size=97, max_length=90, first_id=3, seed=1)
        ids = {"eos": 0, "pad": 1, "mask": 2}
        self._add("corpus", self.folder / "corpus")
        few = random_documents(9, vocabulary_size=50, max_length=90)
        write_token_corpus(self._add("other", self.folder / "other"), few, vocabulary_size=50, **ids)
        write_token_corpus(self._add("maskless", self.folder / "maskless"), documents, vocabulary_size=97, eos=0, pad=1)
        for name, damage in _DAMAGE.items():
            damage(write_token_corpus(self._add(name, self.folder / name), documents, vocabulary_size=97, **ids))

    def _lay_down_text(self) -> None:
        self._add("tokenizer", tiny_tokenizer(self.folder / "tokenizer"))
        lines = "".join(json.dumps({"text": text}) + "\n" for text in sample_documents(40))
        self._write("text", "text.jsonl", lines)
        self._write("bad_gzip", "bad.jsonl.gz", "this is no gzip")
        self._write("bad_parquet", "bad.parquet", "this is no Parquet file")
        self._write("table", "table.tsv", "text\tlabel\nThe miller counts.\tyes\nA fox paints.\tno\n" * 4)

    def _lay_down_models(self) -> None:
        settings = model_settings("test", vocab_size=384)
        encoder = Encoder(settings)
        initialize_(encoder, seed=0)
        for name in ("checkpoint", "damaged_checkpoint"):
            root = self.folder / name
            path = write_checkpoint(
                root, 20, states=model_states(encoder), tokenizer_folder=self.folder / "tokenizer", model=settings
            )
            self._add(name, path)
        _flip_last_byte(next(path.glob("weights-*")))
        started = load_run(self.names["run"], ["model.vocab_size=97", "lr.peak=2e-2"])
        states = model_states(encoder)[:1]
        write_checkpoint(
            self._add("started", self.folder / "started") / "checkpoints",
            10,
            states=states,
            tokenizer_folder=self.folder / "tokenizer",
            settings=snapshot(started),
        )


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _recount(path: Path) -> None:
    path.write_text(path.read_text().replace('"documents": 160', '"documents": 161'))


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


_DAMAGE: dict[str, Callable[[Path], None]] = {
    "damaged_manifest": lambda folder: _recount(folder / "corpus.json"),
    "short_shard": lambda folder: _shorten(folder / "shard-00000.bin"),
    "damaged_shard": lambda folder: _flip_last_byte(folder / "shard-00000.bin"),
}


def call(case: Case, place: Place) -> tuple[object, str]:
    """Run a case's command line in the place: its exit code, and what it says on standard error."""
    err = io.StringIO()
    code: object = None
    words = ["toolkit", *map(place.fill, case.words)]
    with patch.object(sys, "argv", words), chdir(place.folder), redirect_stderr(err), redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as left:
            code = left.code
    return code, err.getvalue()


def call_apart(case: Case, place: Place) -> tuple[object, str]:
    """`call` in a process of its own, whose children's words are heard too."""
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.cli", *map(place.fill, case.words)],
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        for case in (*CASES, *LAUNCHED):
            code, said = (call_apart if case in LAUNCHED else call)(case, place)
            print(f"$ toolkit {' '.join(case.words)}\n{said.replace(folder, '...')}[exit {code}]\n")
