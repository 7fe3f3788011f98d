"""The files of a run folder: written whole or not at all."""

import io
import resource
import shutil
import signal
from contextlib import contextmanager

import pytest
from rich.console import Console

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import CheckpointError, CorpusError, SettingsError
from toolkit.core.files import hash_folder
from toolkit.inspection.runs import run_views
from toolkit.launching.launch import what_is_left
from toolkit.launching.train import is_complete
from toolkit.run import load_run
from toolkit.run.continuation import find_continuation
from toolkit.run.folder import RunFolder
from toolkit.run.load import declare_run, to_toml


@contextmanager
def _no_file_larger_than(num_bytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_run_file_that_was_there(tmp_path):
    settings, folder = load_run(str(write_run(tmp_path))), RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write(folder.settings_file, to_toml(settings))
    before = folder.settings_file.read_bytes()
    with _no_file_larger_than(300), pytest.raises(SettingsError, match=r"could not write .*File too large"):
        folder.write(folder.settings_file, to_toml(settings))
    assert folder.settings_file.read_bytes() == before
    assert load_run(str(folder.settings_file)) == settings
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_the_tokenizer_stays_when_the_corpus_goes(tmp_path):
    write_run(tmp_path)
    folder, source = RunFolder(tmp_path / "run"), tmp_path / "corpus" / "tokenizer"
    folder.path.mkdir()
    hashes = hash_folder(source)
    names = sorted(hashes)
    (folder.path / ".tokenizer.old").mkdir()
    for _ in range(2):
        folder.keep_tokenizer(source, hashes)
        assert sorted(path.name for path in folder.tokenizer.iterdir()) == names
    shutil.rmtree(source)
    with pytest.raises(CorpusError, match="could not copy the tokenizer"):
        folder.keep_tokenizer(source, hashes)
    assert sorted(path.name for path in folder.tokenizer.iterdir()) == names
    assert sorted(path.name for path in folder.path.iterdir()) == ["tokenizer"]


def test_a_step_that_was_cut_is_no_checkpoint(tmp_path):
    """One folder is empty, as `mkdir` leaves it, and another lacks a file; the run goes on before them."""
    run_file = write_run(tmp_path)
    RunCase(str(run_file), overrides=("checkpoint.every=1", "checkpoint.keep=3"), until=3)()
    folder = RunFolder(tmp_path / "run")
    next(folder.checkpoint(3).glob("weights-*")).unlink()
    folder.checkpoint(20).mkdir()
    assert folder.newest_step() == folder.newest_manifest().step == 2
    assert what_is_left(folder) == "interrupted; the same command resumes from step 2"
    assert not is_complete(folder)
    shown = facts_of(folder)
    assert ("step 3 of 20 (15%); saved up to 2" in shown, "saved up to step 20" in shown) == (True, False)
    found = find_continuation(declare_run(str(run_file)))
    assert (found.is_own, found.step) == (True, 2)
    for step in (1, 2):
        (folder.checkpoint(step) / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"^no checkpoint in .* is intact:\n  .*step-00000020"):
        find_continuation(declare_run(str(run_file)))


def facts_of(folder):
    console = Console(width=200, file=io.StringIO())
    for view in run_views(folder):
        console.print(view)
    return console.file.getvalue()


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / ".run.toml.12345678.partial").touch()
    (folder.path / ".tokenizer.12345678.partial").mkdir()
    folder.settings_file.touch()
    with folder.locked():
        assert {path.name for path in folder.path.iterdir()} == {".lock", "run.toml"}
