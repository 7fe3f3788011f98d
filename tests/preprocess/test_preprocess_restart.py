import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.text import sample_documents
from toolkit.core.errors import CorpusError, UserError
from toolkit.data import Corpus
from toolkit.preprocess import PreprocessSettings, preprocess
from toolkit.preprocess.writer.ledger import LEDGER_NAME


def all_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def sources(write_jsonl):
    rows = [row for text in sample_documents(6, seed=6) for row in (text, "", b"[]")]
    return [write_jsonl("a.jsonl", rows), write_jsonl("b.jsonl", rows[::-1])]


GIVEN = {"shard_tokens": 400, "max_bad_fraction": 1.0}


def run_and_die(number, run):
    """Run in a child that ends at once, as by kill -9, at the given write that must survive; True if it finished."""
    pid = os.fork()
    if pid == 0:
        left = number

        def counted(function):
            def call(*args, **kwargs):
                nonlocal left
                left -= 1
                if left < 0:
                    os._exit(9)
                return function(*args, **kwargs)

            return call

        os.fsync, Path.replace, Path.unlink = counted(os.fsync), counted(Path.replace), counted(Path.unlink)
        try:
            run()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 0


def test_killed_at_any_write_and_started_again_it_ends_with_the_same_bytes(prepare, sources, tmp_path):
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    expected, output = all_files(tmp_path / "whole"), tmp_path / "killed"

    kept, number, has_finished = [], 0, False
    while not has_finished:
        has_finished = run_and_die(number, lambda: prepare(*sources, output=output, **GIVEN))
        if not (output / "corpus.json").exists() or (output / LEDGER_NAME).exists():
            kept.append(prepare(*sources, output=output, **GIVEN).num_kept_shards)
        assert all_files(output) == expected
        for path in sorted(output.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        number += 1

    num_shards = len(Corpus(tmp_path / "whole").shards)
    assert num_shards == 4
    assert number > 6 * num_shards
    assert sorted(set(kept)) == list(range(num_shards + 1))
    assert kept == sorted(kept)


def test_killed_while_it_replaces_a_corpus_and_started_again_it_ends_with_the_same_bytes(prepare, sources, tmp_path):
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    expected, output = all_files(tmp_path / "whole"), tmp_path / "killed"

    for number in range(0, 16, 2):
        prepare(*sources[:1], output=output, **GIVEN, overwrite=True)
        run_and_die(number, lambda: prepare(*sources, output=output, **GIVEN, overwrite=True))
        prepare(*sources, output=output, **GIVEN, overwrite=True)
        assert all_files(output) == expected


def test_a_killed_process_leaves_what_the_next_one_goes_on_from(sources, tokenizer_folder, tmp_path, prepare):
    code = (
        "import sys, time; from pathlib import Path; from toolkit.preprocess import *\n"
        "import toolkit.preprocess.writer.writing as p; kept = p.record_step\n"
        "def slow(*args):\n kept(*args); print('shard', flush=True); time.sleep(0.2)\n"
        "p.record_step = slow\n"
        "settings = PreprocessSettings(tokenizer=sys.argv[1], shard_tokens=400, max_bad_fraction=1)\n"
        "preprocess(sys.argv[3:], Path(sys.argv[2]), settings=settings)"
    )
    output = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tokenizer_folder), str(output), *map(str, sources)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == b"shard\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    result = prepare(*sources, output=output, **GIVEN)
    prepare(*sources, output=tmp_path / "whole", **GIVEN)

    assert result.num_kept_shards >= 2
    assert all_files(output) == all_files(tmp_path / "whole")


@pytest.mark.parametrize("change", ["setting", "source", "tokenizer"])
def test_an_unfinished_corpus_of_something_else_is_begun_anew(prepare, sources, tokenizer_folder, tmp_path, change):
    output = tmp_path / "killed"
    assert not run_and_die(20, lambda: prepare(*sources, output=output, **GIVEN))
    assert list(output.glob("shard-*"))
    given = dict(GIVEN)
    if change == "setting":
        given["add_eod"] = False
    elif change == "source":
        sources[0].write_bytes(sources[0].read_bytes().replace(b"The", b"the"))
        os.utime(sources[0], (1, 1))
    else:
        given["mask_token"] = "token:r"

    result = prepare(*sources, output=output, **given)
    prepare(*sources, output=tmp_path / "whole", **given)

    assert result.num_kept_shards == 0
    assert all_files(output) == all_files(tmp_path / "whole")


def test_what_does_not_decide_the_bytes_may_change_between(prepare, sources, tmp_path):
    output = tmp_path / "corpus"
    with pytest.raises(UserError, match="--max-bad-fraction"):
        prepare(*sources, output=output, shard_tokens=400, max_bad_fraction=0.1)

    assert (
        prepare(*sources, output=output, shard_tokens=400, max_bad_fraction=1, sequence_length=32).num_kept_shards > 0
    )


def test_a_lost_shard_of_an_unfinished_corpus_begins_it_anew(prepare, sources, tmp_path):
    output = tmp_path / "killed"
    assert not run_and_die(20, lambda: prepare(*sources, output=output, **GIVEN))
    (output / "shard-00000.idx").unlink()

    assert prepare(*sources, output=output, **GIVEN).num_kept_shards == 0


def test_a_line_of_the_ledger_that_was_being_written_is_left_out(prepare, sources, tmp_path):
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    output = tmp_path / "killed"
    assert not run_and_die(10, lambda: prepare(*sources, output=output, **GIVEN))
    with (output / LEDGER_NAME).open("ab") as ledger:
        ledger.write(b'{"shard": {"name": "sha')
    assert not run_and_die(8, lambda: prepare(*sources, output=output, **GIVEN))

    assert prepare(*sources, output=output, **GIVEN).num_kept_shards == 2
    assert all_files(output) == all_files(tmp_path / "whole")


def test_a_damaged_ledger_begins_the_corpus_anew(prepare, sources, tmp_path):
    output = tmp_path / "killed"
    assert not run_and_die(20, lambda: prepare(*sources, output=output, **GIVEN))
    (output / LEDGER_NAME).write_bytes((output / LEDGER_NAME).read_bytes().replace(b'"tally"', b'"telly"', 1))

    assert prepare(*sources, output=output, **GIVEN).num_kept_shards == 0


def test_a_finished_corpus_is_refused_and_replaced_on_request(prepare, sources, tmp_path):
    prepare(*sources, **GIVEN)
    (tmp_path / "corpus" / "notes.md").write_text("mine")

    with pytest.raises(UserError, match=r"holds a finished corpus of 12 documents.*--overwrite"):
        prepare(*sources, **GIVEN)
    prepare(sources[0], max_bad_fraction=1, overwrite=True)

    assert Corpus(tmp_path / "corpus").num_documents == 6
    assert (tmp_path / "corpus" / "notes.md").read_text() == "mine"
    assert len(list((tmp_path / "corpus").glob("shard-*"))) == 2


def test_a_damaged_corpus_is_refused_too(prepare, sources, tmp_path):
    prepare(*sources, **GIVEN)
    (tmp_path / "corpus" / "corpus.json").write_text("{")

    with pytest.raises(UserError, match=r"holds a damaged corpus.*--overwrite"):
        prepare(*sources, **GIVEN)
    prepare(*sources, **GIVEN, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_something_else_is_never_written(prepare, sources, tmp_path, overwrite):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").write_text("x")

    with pytest.raises(UserError, match=r"is not empty and holds no corpus \(but thesis\.tex\)"):
        prepare(*sources, **GIVEN, overwrite=overwrite)
    assert list(all_files(tmp_path / "corpus")) == ["thesis.tex"]


def test_a_file_in_the_place_of_the_folder_is_said(prepare, sources, tmp_path):
    (tmp_path / "corpus").write_text("x")

    with pytest.raises(UserError, match="is a file"):
        prepare(*sources, **GIVEN)


def test_two_processes_cannot_write_one_corpus(prepare, sources, tmp_path):
    (tmp_path / "corpus").mkdir()
    descriptor = os.open(tmp_path / "corpus", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    with pytest.raises(UserError, match="Another process"):
        prepare(*sources, **GIVEN)
    os.close(descriptor)
    prepare(*sources, **GIVEN)


def test_a_failed_start_leaves_no_folder_behind(prepare, write_jsonl, tmp_path):
    with pytest.raises(UserError):
        prepare(write_jsonl("a.jsonl", ["x"]), text_field="body", output=tmp_path / "deep" / "corpus")
    with pytest.raises(UserError, match="There is no file"):
        prepare(tmp_path / "nowhere", output=tmp_path / "never")

    assert not (tmp_path / "never").exists()


def test_a_full_disk_is_said_and_then_it_goes_on(prepare, sources, tmp_path, monkeypatch):
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((UserError, CorpusError), match="No space left on device"):
        prepare(*sources, **GIVEN)
    monkeypatch.setattr(os, "fsync", real)
    assert not list((tmp_path / "corpus").glob(".shard*"))

    assert prepare(*sources, **GIVEN).num_kept_shards > 0


def test_ctrl_c_leaves_a_folder_that_goes_on(sources, tokenizer_folder, tmp_path, monkeypatch):
    from toolkit.preprocess.writer.shard_sequence import ShardSequence

    settings, real, calls = PreprocessSettings(tokenizer=str(tokenizer_folder), **GIVEN), ShardSequence.add, []

    def interrupted(self, *args):
        real(self, *args)
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(ShardSequence, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        preprocess([str(source) for source in sources], tmp_path / "corpus", settings=settings)
    monkeypatch.setattr(ShardSequence, "add", real)

    result = preprocess([str(source) for source in sources], tmp_path / "corpus", settings=settings)
    assert result.num_kept_shards > 0
    assert result.manifest.documents == 12
