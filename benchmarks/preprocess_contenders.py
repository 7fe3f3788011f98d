"""Contenders in the benchmark of `toolkit preprocess`: the command of each, what it reads, where its ids are."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import rows
from preprocess_outputs import Documents, read_corpus, read_datatrove, read_megatron_pair

import tokenization

OUR_PACKAGES = ("encoder-pretraining-toolkit", "gigatoken", "tokenizers", "pyarrow", "numpy")
PEER_PACKAGES = ("megatron-core", "datatrove", "gigatoken", "transformers", "tokenizers", "torch", "numpy")
PEER_PROGRAMS = Path(__file__).with_name("preprocess_peers.py")


@dataclass(frozen=True)
class Places:
    """Folders and programs that a run of the benchmark was given."""

    toolkit: str
    peer_python: Path
    tokenizer: Path
    eod_text: str
    vocabulary_size: int
    work: Path
    workers: int


@dataclass(frozen=True)
class Contender:
    """One command: `reads` names the field of `Amount` that it takes, `command` gets that path and a new folder."""

    how: str
    reads: str
    command: Callable[[Path, Path], list[str]]
    read: Callable[[Path], Documents]
    is_slow: bool = False


@dataclass(frozen=True)
class Comparison:
    """Two contenders on the same files; `wanted` are ratios that are aimed at, by the names they have in the row."""

    name: str
    ours: str
    peer: str
    amounts: tuple[str, ...]
    wanted: dict[str, float]

    @property
    def sides(self) -> tuple[str, str]:
        """Ours and the peer."""
        return self.ours, self.peer


_DATATROVE_RATIOS = {"whole command, wall": 25.0, "without start, wall": 15.0}
COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        Comparison("megatron", "ours jsonl", "megatron", ("quarter", "whole"), {"without start, wall": 25.0}),
        Comparison("megatron-fast", "ours jsonl", "megatron fast", ("big",), {"big command, wall": 3.0}),
        Comparison("datatrove-jsonl", "ours jsonl files", "datatrove jsonl", ("quarter", "whole"), _DATATROVE_RATIOS),
        Comparison("datatrove-parquet", "ours parquet", "datatrove parquet", ("quarter", "whole"), _DATATROVE_RATIOS),
    )
}


def contenders(places: Places) -> dict[str, Contender]:
    return {
        "ours jsonl": _ours(places, "jsonl"),
        "ours jsonl files": _ours(places, "jsonl_folder"),
        "ours parquet": _ours(places, "parquet_folder"),
        "megatron": _megatron(places, "megatron-loop", str(places.workers), is_slow=True),
        "megatron fast": _megatron(places, "megatron-fast-loop", is_slow=False),
        "datatrove jsonl": _datatrove(places, "jsonl_folder"),
        "datatrove parquet": _datatrove(places, "parquet_folder"),
    }


def prepare_tokenizer(spec: str, folder: Path) -> tuple[int, str]:
    """Save a tokenizer as a Hugging Face folder without a post-processor; its vocabulary size and end-of-document text.

    Without: datatrove and Megatron-LM's fast tool leave out what a tokenizer puts in front of a text.
    """
    tokenizer = tokenization.load(spec)
    if tokenizer.eod_text is None:
        raise SystemExit(f"{spec} names no end-of-document token, which the peers need.")
    tokenizer.save(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"post_processor": None}))
    return tokenizer.encoded_vocabulary_size, tokenizer.eod_text


def versions(places: Places) -> dict[str, dict[str, str]]:
    """Of our packages, and of those that the peers' environment has."""
    program = "import json, sys, rows; print(json.dumps(rows.versions(sys.argv[1:])))"
    command = [str(places.peer_python.absolute()), "-c", program, *PEER_PACKAGES]
    peers = subprocess.run(command, cwd=PEER_PROGRAMS.parent, stdout=subprocess.PIPE, check=True, text=True)
    return {"ours": rows.versions(OUR_PACKAGES), "peers": json.loads(peers.stdout)}


def _ours(places: Places, reads: str) -> Contender:
    def command(source: Path, output: Path) -> list[str]:
        options = ["--tokenizer", str(places.tokenizer), "--workers", str(places.workers)]
        return [places.toolkit, "preprocess", str(source), "--output", str(output / "corpus"), *options]

    how = f"toolkit preprocess --workers {places.workers}"
    return Contender(how, reads, command, lambda output: read_corpus(output / "corpus"))


def _megatron(places: Places, program: str, *options: str, is_slow: bool) -> Contender:
    def command(source: Path, output: Path) -> list[str]:
        return [*_peer_program(places, program, source, output / "out"), str(places.tokenizer), *options]

    how = f"{program}, driven on megatron-core"
    return Contender(
        how, "jsonl", command, lambda output: read_megatron_pair(output / "out_text_document"), is_slow=is_slow
    )


def _datatrove(places: Places, reads: str) -> Contender:
    def command(source: Path, output: Path) -> list[str]:
        program = _peer_program(places, "datatrove", source, output)
        return [*program, str(places.tokenizer), places.eod_text, str(places.workers)]

    how = f"DocumentTokenizer after its reader, {places.workers} tasks, no shuffling"
    return Contender(how, reads, command, lambda output: read_datatrove(output / "tokens"), is_slow=True)


def _peer_program(places: Places, name: str, source: Path, output: Path) -> list[str]:
    return [str(places.peer_python), str(PEER_PROGRAMS), name, str(source), str(output)]
