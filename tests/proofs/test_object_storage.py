"""Runs on a real S3 server: equal to local ones, through its death, in little room, from an empty machine."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proofs.object_storage import BUCKET, Server, is_available, server
from tests.resume.test_resume import compare
from tests.support.runs import read_metrics, write_run
from tests.support.text import sample_documents, tiny_tokenizer
from tests.training.test_copying import compare_from
from toolkit.core.files import hash_folder
from toolkit.storage import list_objects, read
from toolkit.testing.corpora import random_documents, write_token_corpus

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not is_available(), reason="needs s3fs and moto[server]"),
]

_CORPUS = f"{BUCKET}/corpus"
_FROM_THERE = (f"data.train={_CORPUS}", f"data.validation={BUCKET}/validation")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run of 20 steps over a corpus of eight shards."""
    run_file = write_run(tmp_path)
    documents = random_documents(160, vocabulary_size=97, max_length=90, first_id=3, seed=1)
    write_token_corpus(tmp_path / "corpus", documents, vocabulary_size=97, eos=0, pad=1, mask=2, shards=8)
    return run_file


@pytest.fixture
def s3(tmp_path: Path, run_file: Path) -> Iterator[Server]:
    with server(tmp_path) as running:
        for name in ("corpus", "validation"):
            running.upload(tmp_path / name, f"{BUCKET}/{name}")
        yield running


def _train(run_file: Path, name: str, *settings: str, until: int = 20) -> "subprocess.Popen[str]":
    folder = run_file.parent / name
    options = [part for setting in (*settings, f"run.dir={folder}") for part in ("--set", setting)]
    command = [sys.executable, "-m", "toolkit.cli", "train", str(run_file), "--num-procs", "2", *options]
    command += ["--until", str(until)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(run_file.parent / f"cache-{name}")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def _trained(run_file: Path, name: str, *settings: str) -> str:
    process = _train(run_file, name, *settings)
    output = process.communicate(timeout=280)[0]
    assert process.returncode == 0, output
    return output


def _cached(folder: Path, name: str) -> int:
    sizes = 0
    for path in (folder / f"cache-{name}").rglob("*.bin"):
        # It may have made room meanwhile.
        with contextlib.suppress(FileNotFoundError):
            sizes += path.stat().st_size
    return sizes


def test_a_run_from_there_equals_the_local_one_and_fetches_each_shard_once(
    tmp_path: Path, run_file: Path, s3: Server
) -> None:
    _trained(run_file, "local")
    _trained(run_file, "remote", *_FROM_THERE)
    assert compare(tmp_path / "local", tmp_path / "remote") == []
    fetched = s3.fetched(".bin")
    assert len(fetched) == len(set(fetched)) == 9


def test_in_a_cache_smaller_than_the_corpus(tmp_path: Path, run_file: Path, s3: Server) -> None:
    room = max(path.stat().st_size for path in tmp_path.rglob("*.bin")) * 4
    process = _train(run_file, "small", *_FROM_THERE, f"run.cache_gb={room / 1e9}")
    most, reader = 0, threading.Thread(target=lambda: told.append(process.communicate()[0]))
    told = list[str]()
    reader.start()
    while process.poll() is None:
        most = max(most, _cached(tmp_path, "small"))
        time.sleep(0.01)
    reader.join()
    assert process.returncode == 0, told
    assert "fetched again when they are read again" in told[0]
    assert 0 < most <= room
    _trained(run_file, "local")
    assert compare(tmp_path / "local", tmp_path / "small") == []


def test_a_server_that_dies_in_the_middle_is_waited_for(tmp_path: Path, run_file: Path, s3: Server) -> None:
    room = max(path.stat().st_size for path in tmp_path.rglob("*.bin")) * 4
    process = _train(run_file, "killed", *_FROM_THERE, f"run.cache_gb={room / 1e9}")
    while not read_metrics(tmp_path / "killed") and process.poll() is None:
        time.sleep(0.05)
    s3.kill()
    time.sleep(20)
    step_while_away = read_metrics(tmp_path / "killed")[-1]["step"]
    assert process.poll() is None
    s3.start()
    output = process.communicate(timeout=250)[0]
    assert process.returncode == 0, output
    assert step_while_away < 20
    _trained(run_file, "local")
    assert compare(tmp_path / "local", tmp_path / "killed") == []


def test_a_damaged_object_is_named(tmp_path: Path, run_file: Path, s3: Server) -> None:
    damaged = bytearray((tmp_path / "corpus" / "shard-00003.bin").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damage").mkdir()
    (tmp_path / "damage" / "shard-00003.bin").write_bytes(damaged)
    s3.upload(tmp_path / "damage", _CORPUS)
    process = _train(run_file, "damaged", *_FROM_THERE)
    output = process.communicate(timeout=250)[0]
    assert process.returncode == 2
    assert output.count(f"{_CORPUS}/shard-00003.bin is damaged: expected SHA-256") == 1


def test_an_empty_machine_resumes_from_the_copies(tmp_path: Path, run_file: Path, s3: Server) -> None:
    settings = (*_FROM_THERE, "checkpoint.every=5", f"checkpoint.copy_to={BUCKET}/copies")
    stopped = _train(run_file, "first", *settings, until=10)
    output = stopped.communicate(timeout=250)[0]
    assert stopped.returncode == 0, output
    # Another machine has neither the run folder nor the cache.
    output = _trained(run_file, "second", *settings)
    assert f"downloading the checkpoint {BUCKET}/copies/step-00000010" in output
    assert "resuming from step 10" in output
    assert {name.partition("/")[0] for name in list_objects(f"{BUCKET}/copies")} == {
        f"step-{step:08d}" for step in (5, 10, 15, 20)
    }
    _trained(run_file, "local")
    assert compare_from(tmp_path / "local", tmp_path / "second") == []


def test_text_from_there_becomes_the_corpus_there(tmp_path: Path, s3: Server) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(3):
        rows = [json.dumps({"text": text}) for text in sample_documents(200, seed=number)]
        (texts / f"{number}.jsonl").write_text("\n".join(rows))
    s3.upload(texts, f"{BUCKET}/texts")
    options = ["--tokenizer", str(tiny_tokenizer(tmp_path / "tokenizer")), "--holdout", "0.1", "--shard-tokens", "5000"]
    for source, output in ((texts, tmp_path / "local"), (f"{BUCKET}/texts", f"{BUCKET}/made")):
        command = [sys.executable, "-m", "toolkit.cli", "preprocess", str(source), *options, "--output", str(output)]
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
    for name in list_objects(f"{BUCKET}/made"):
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read(f"{BUCKET}/made/{name}"))
    assert hash_folder(tmp_path / "made") == hash_folder(tmp_path / "local")
    assert len(list((tmp_path / "made").glob("*.bin"))) > 3
