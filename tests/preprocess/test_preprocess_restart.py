import errno
import fcntl
import itertools
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.text import sample_documents, tiny_tokenizer
from toolkit.core.errors import CorpusError, UserError
from toolkit.core.locks import try_lock
from toolkit.data import Corpus
from toolkit.preprocess.program import preprocess
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.tasks import item_key
from toolkit.preprocess.view import CorpusView
from toolkit.preprocess.writer import groups, writing
from toolkit.preprocess.writer.begun import note_begun, read_begun
from toolkit.preprocess.writer.folder import LOCK_NAME, locked_output
from toolkit.work.claims import Claims, Item, Job
from toolkit.work.commands import command_name


def all_files(folder: Path) -> dict[str, bytes]:
    """Every file but the empty ones that processes lock, and leave if they are killed."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def sources(write_jsonl, monkeypatch):
    """Two groups of two shards each."""
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    rows = [row for text in sample_documents(6, seed=6) for row in (text, "", b"[]")]
    return [write_jsonl("a.jsonl", rows), write_jsonl("b.jsonl", rows[::-1])]


GIVEN = {"shard_tokens": 400, "max_bad_fraction": 1.0}


def code_of_child(run, before_each_write):
    """The exit code of a child that runs this as another command; with a call before each write that must survive."""
    pid = os.fork()
    if pid == 0:
        command_name.cache_clear()

        def announced(function):
            def call(*args, **kwargs):
                before_each_write()
                return function(*args, **kwargs)

            return call

        os.fsync, Path.replace, Path.unlink = announced(os.fsync), announced(Path.replace), announced(Path.unlink)
        shutil.rmtree = announced(shutil.rmtree)
        try:
            run()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_and_die(number, run):
    """Run in a child that ends at once, as by kill -9, at the given write that must survive; True if it finished."""
    numbers = itertools.count()
    code = code_of_child(run, lambda: os._exit(9) if next(numbers) == number else None)
    assert code in (0, 9)
    return code == 0


def every_moment(run, output, copies):
    """Copies of a folder, each as a kill at the next write that must survive would leave it; the run goes on behind.

    It holds its locks meanwhile, and nobody those of a copy.
    """
    numbers = itertools.count()

    def keep():
        if output.exists():
            shutil.copytree(output, copies / f"{next(numbers):04}")

    assert code_of_child(run, keep) == 0
    return sorted(copies.iterdir())


def in_turn(copies, output):
    """Each in the place of the folder, but for those that are like an earlier one in all that they hold."""
    seen = []
    for copy in copies:
        state = {path.relative_to(copy): path.is_file() and path.read_bytes() for path in copy.rglob("*")}
        if state not in seen:
            seen.append(state)
            copy.rename(output)
            yield
            shutil.rmtree(output)


def go_on(prepare, *sources, **given):
    """The command that was killed; None where that had all done but the removal of what is no longer needed."""
    with suppress(AssertionError):
        return prepare(*sources, **given)


def killed_behind(num_groups, run):
    """Run in a child that ends, as by kill -9, where it begins one group more than these."""
    begun, new_group = itertools.count(), writing.new_group

    def kill(folder):
        if next(begun) == num_groups:
            os._exit(9)
        return new_group(folder)

    def patched():
        writing.new_group = kill
        run()

    assert not run_and_die(1 << 30, patched)


@pytest.mark.parametrize("group_bytes", [1 << 30, 1])
def test_killed_at_any_write_and_started_again_it_ends_with_the_same_bytes(
    prepare, sources, tmp_path, monkeypatch, group_bytes
):
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", group_bytes)
    sources.append(tmp_path / "c.txt")
    sources[-1].touch()
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    expected, output = all_files(tmp_path / "whole"), tmp_path / "killed"

    copies = every_moment(lambda: prepare(*sources, output=output, **GIVEN), output, tmp_path / "copies")
    assert all_files(output) == expected
    shutil.rmtree(output)
    kept = []
    for _ in in_turn(copies, output):
        if result := go_on(prepare, *sources, output=output, **GIVEN):
            kept.append(result.num_kept_shards)
        assert all_files(output) == expected

    assert len(Corpus(tmp_path / "whole").shards) == 4
    assert len(copies) >= 24
    assert sorted(set(kept)) == ([0, 2, 4] if group_bytes == 1 else [0, 4])
    assert kept == sorted(kept)


def test_killed_while_it_replaces_a_corpus_and_started_again_it_ends_with_the_same_bytes(prepare, sources, tmp_path):
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    expected, output = all_files(tmp_path / "whole"), tmp_path / "killed"

    for number in range(0, 16, 2):
        prepare(*sources[:1], output=output, **GIVEN, overwrite=True)
        run_and_die(number, lambda: prepare(*sources, output=output, **GIVEN, overwrite=True))
        prepare(*sources, output=output, **GIVEN, overwrite=True)
        assert all_files(output) == expected


class Unwritten(Job):
    def is_done(self, item):
        return False


def test_a_corpus_in_the_making_is_seen_from_outside(prepare, sources, tmp_path, toolkit):
    output = tmp_path / "killed"
    killed_behind(1, lambda: prepare(*sources, output=output, **GIVEN))
    code, out, _ = toolkit("inspect", output, "--watch")
    assert code == 0
    assert "1 of 2 source groups written (0 of 0 MB), 0 at work; no process is running it" in " ".join(out.split())
    with locked_output(output, timeout=0.0):
        view = CorpusView(output)
        claims = Claims(Unwritten(output / ".work", [Item(item_key("write", 1, "the text is short"))]))
        item = claims.claim()
        (output / ".work" / "commands").mkdir(exist_ok=True)
        command = try_lock(output / ".work" / "commands" / "one.lock")
        view.look()
        assert (view.picture(), view.is_over()) == ("1 of 2 source groups written (0 of 0 MB), 1 at work", False)
        claims.end(item, "broken")
        view.look()
        assert next(line.text for line in view.news()) == "write 00001 by the reference failed: broken"
        assert ", 0 at work, 1 failed" in view.picture()
        assert [line.is_news for line in view.news()] == [False]
        assert not [*view.news()]
        claims.release()
        begun = read_begun(output)
        # Other sources: what is written of them stays as long as its backend is in use.
        more = {**begun.key, "sources": [*begun.key["sources"], ["c.jsonl", 3_000_000, "1"]]}
        note_begun(output, begun.model_copy(update={"key": more}))
        view.look()
        assert view.picture().startswith("1 of 3 source groups written (0 of 3 MB)")
        note_begun(output, begun.model_copy(update={"why_reference": ""}))
        view.look()
        assert view.picture().startswith("0 of 2 source groups written")
        record = output / "unfinished" / "00000" / "group.json"
        content = record.read_text()
        record.write_text(content.replace("the text is short", ""))
        view.look()
        assert view.picture().startswith("1 of 2 source groups written")
        record.write_text(content)
        note_begun(output, begun.model_copy(update={"is_merging": True}))
        view.look()
        assert view.picture() == "all 2 source groups are written and become the corpus"
        note_begun(output, begun)
        command.release()
    prepare(*sources, output=output, **GIVEN)
    view.look()
    assert (view.picture(), view.is_over()) == (f"the corpus in {output} is finished", True)
    shutil.rmtree(output)
    view.look()
    assert (view.picture(), view.is_over()) == (f"the corpus in {output} is not there any more", True)


@pytest.mark.parametrize("key", ["", "{}", '{"sources": [[1]]}'])
def test_a_damaged_beginning_is_named(tmp_path, toolkit, key):
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "begun.json").write_text(f'{{"key": {key}, "why_reference": ""}}')
    code, _, err = toolkit("inspect", tmp_path, "--watch")
    assert (code, "begun.json is damaged" in err) == (2, True)


def test_a_group_that_a_killed_process_began_is_written_again(sources, tokenizer_folder, tmp_path, prepare):
    code = (
        "import sys; from pathlib import Path; from toolkit.preprocess.program import *\n"
        "from toolkit.preprocess.writer import groups, shard_sequence as p; add = p.ShardSequence.add\n"
        "def slow(*args):\n add(*args); print('span', flush=True); sys.stdin.readline()\n"
        "p.ShardSequence.add, groups.SOURCE_GROUP_BYTES = slow, 1\n"
        "settings = PreprocessSettings(tokenizer=sys.argv[1], shard_tokens=400, max_bad_fraction=1)\n"
        "preprocess(sys.argv[3:], Path(sys.argv[2]), settings=settings)"
    )
    output = tmp_path / "killed"
    command = [sys.executable, "-c", code, str(tokenizer_folder), str(output), *map(str, sources)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        # It waits for a line behind the span of each group, and gets one.
        process.stdin.write(b"\n")
        for _ in range(2):
            assert process.stdout.readline() == b"span\n"
        process.kill()
    assert list((output / "unfinished").glob(".00001.*.partial/shard-*.bin"))

    result = prepare(*sources, output=output, **GIVEN)
    prepare(*sources, output=tmp_path / "whole", **GIVEN)

    assert result.num_kept_shards == 2
    assert all_files(output) == all_files(tmp_path / "whole")


def _touch(sources, _):
    os.utime(sources[0], (1, 1))


def _add(sources, _):
    sources.append(Path(shutil.copy(sources[0], sources[0].with_name("0.jsonl"))))


def _take_out(sources, _):
    del sources[0]


def _other_tokenizer(_, given):
    folder = Path(given["tokenizer"]).with_name("other")
    given["tokenizer"] = str(tiny_tokenizer(folder, vocabulary_size=300))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda _, given: given.update(add_eod=False), "--no-eod (ids appended to a document): [0] then, [] now"),
        (lambda _, given: given.update(shard_tokens=1500), "--shard-tokens: 400 then, 1,500 now"),
        (lambda _, given: given.update(holdout=0.5), "--holdout: 0.0 then, 0.5 now"),
        (lambda _, given: given.update(limit_tokens=10**6), "--limit-tokens: not given then, 1,000,000 now"),
        (lambda _, given: given.update(special_text="literal"), "--special-text: parse then, literal now"),
        (_other_tokenizer, "--tokenizer: "),
        (_touch, "sources: 1 modified (a.jsonl)"),
        (_add, "sources: 1 new (0.jsonl)"),
        (_take_out, "sources: 1 gone (a.jsonl)"),
        (lambda *_: "2.0", "gigatoken: "),
    ],
    ids=["eod", "shards", "holdout", "limit", "special", "tokenizer", "touched", "new", "gone", "library"],
)
def test_an_unfinished_corpus_that_was_begun_differently_is_refused(
    prepare, sources, tokenizer_folder, tmp_path, monkeypatch, change, named
):
    """D6: ten hours of finished shards do not go on a typo."""
    output = tmp_path / "killed"
    given = {"tokenizer": str(tmp_path / "tokenizer"), **GIVEN}
    shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    killed_behind(1, lambda: prepare(*sources, output=output, **given))
    kept = all_files(output)
    assert "unfinished/00000/shard-00000.bin" in kept
    if version := change(sources, given):
        monkeypatch.setattr("toolkit.preprocess.program.version_of", lambda _: version)

    with pytest.raises(UserError, match=r"(?s)unfinished corpus with \d finished shards? .*--overwrite") as refused:
        prepare(*sources, output=output, **given)
    assert named in str(refused.value)
    assert all_files(output) == kept

    assert prepare(*sources, output=output, **given, overwrite=True).num_kept_shards == 0
    prepare(*sources, output=tmp_path / "whole", **given)
    assert all_files(output) == all_files(tmp_path / "whole")


def test_what_failed_before_its_first_group_may_be_started_differently(prepare, sources, tmp_path):
    with pytest.raises(UserError, match="gives no document"):
        prepare(*sources, **GIVEN, text_field="body")
    begun, *marks = sorted(all_files(tmp_path / "corpus"), reverse=True)
    assert begun == "unfinished/begun.json"
    assert [name.rpartition(".")[2] for name in marks] == ["error", "error", "work/key"]

    assert prepare(*sources, **GIVEN).manifest.documents == 12


def test_what_the_shards_do_not_depend_on_may_change_between(prepare, sources, tmp_path):
    output = tmp_path / "corpus"
    with pytest.raises(UserError, match="--max-bad-fraction"):
        prepare(*sources, output=output, shard_tokens=400, max_bad_fraction=0.1)
    given = {"shard_tokens": 400, "max_bad_fraction": 1, "mask_token": "token:r", "special_text": "parse"}

    assert prepare(*sources, output=output, **given, workers=1, sequence_length=32).num_kept_shards > 0
    prepare(*sources, output=tmp_path / "whole", **given, sequence_length=32)
    assert all_files(output) == all_files(tmp_path / "whole")


def test_sources_may_move_together(prepare, sources, tmp_path):
    output = tmp_path / "corpus"
    killed_behind(1, lambda: prepare(*sources, output=output, **GIVEN))
    (tmp_path / "elsewhere").mkdir()
    moved = [source.rename(tmp_path / "elsewhere" / source.name) for source in sources]

    assert prepare(*moved, output=output, **GIVEN).num_kept_shards > 0


def test_the_mask_may_change_even_after_the_manifest_was_written(prepare, sources, tmp_path, monkeypatch):
    output = tmp_path / "corpus"
    with monkeypatch.context() as patch:
        patch.setattr("toolkit.preprocess.program.forget_unfinished", lambda folder: None)
        prepare(*sources, output=output, **GIVEN)
    assert (output / "corpus.json").exists()

    prepare(*sources, output=output, **GIVEN, mask_token="token:r")
    prepare(*sources, output=tmp_path / "whole", **GIVEN, mask_token="token:r")
    assert all_files(output) == all_files(tmp_path / "whole")


def test_a_lost_file_of_a_finished_group_is_named(prepare, sources, tmp_path):
    output = tmp_path / "killed"
    killed_behind(1, lambda: prepare(*sources, output=output, **GIVEN))
    (output / "unfinished" / "00000" / "shard-00000.idx").unlink()

    group = output / "unfinished" / "00000"
    with pytest.raises(CorpusError, match=rf"{group}/shard-00000\.idx is missing.* Remove the folder {group}: "):
        prepare(*sources, output=output, **GIVEN)
    shutil.rmtree(group)
    prepare(*sources, output=output, **GIVEN)
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    assert all_files(output) == all_files(tmp_path / "whole")


def test_what_says_what_is_begun_is_refused_if_damaged_and_one_of_a_group_costs_this_group(prepare, sources, tmp_path):
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    output = tmp_path / "killed"
    killed_behind(1, lambda: prepare(*sources, output=output, **GIVEN))
    begun, group = output / "unfinished" / "begun.json", output / "unfinished" / "00000" / "group.json"
    kept = begun.read_bytes()
    begun.write_bytes(kept.replace(b'"key"', b'"kez"', 1))

    with pytest.raises(UserError, match=r"whose unfinished folder is damaged or of an earlier version.*--overwrite"):
        prepare(*sources, output=output, **GIVEN)
    begun.write_bytes(kept)
    group.write_bytes(group.read_bytes().replace(b'"tally"', b'"telly"', 1))
    assert prepare(*sources, output=output, **GIVEN).num_kept_shards == 0
    assert all_files(output) == all_files(tmp_path / "whole")


def test_a_finished_corpus_is_found_by_its_command_and_refused_to_others(
    prepare, sources, tmp_path, tokenizer_folder, capsys
):
    prepare(*sources, **GIVEN)
    (tmp_path / "corpus" / "notes.md").write_text("mine")
    before = all_files(tmp_path / "corpus")
    for others in ({}, {"workers": 2}, {"tasks": 3, "engine": "reference"}):
        settings = PreprocessSettings(tokenizer=str(tokenizer_folder), **GIVEN, **others)
        assert preprocess([*map(str, sources)], tmp_path / "corpus", settings=settings) is None
        assert "corpus is already finished: 12 documents" in capsys.readouterr().out
    another = r"holds a finished corpus of 12 documents from other sources or options: name another folder"
    for source, options in ((sources, {}), (sources[:1], GIVEN), (sources, {**GIVEN, "mask_token": "id:3"})):
        with pytest.raises(UserError, match=another):
            prepare(*source, **options)
    os.utime(sources[0])
    with pytest.raises(UserError, match=another):
        prepare(*sources, **GIVEN)
    assert all_files(tmp_path / "corpus") == before
    prepare(sources[0], max_bad_fraction=1, overwrite=True)

    assert Corpus(tmp_path / "corpus").num_documents == 6
    assert (tmp_path / "corpus" / "notes.md").read_text() == "mine"
    assert len(list((tmp_path / "corpus").glob("shard-*"))) == 2


def test_a_finished_corpus_without_its_holdout_is_refused(prepare, sources, tmp_path):
    given = {**GIVEN, "holdout": 0.3}
    prepare(*sources, **given)
    shutil.rmtree(tmp_path / "corpus" / "holdout")

    with pytest.raises(CorpusError, match=r"holdout.*; --overwrite rebuilds it"):
        prepare(*sources, **given)
    prepare(*sources, **given, overwrite=True)


def test_a_damaged_corpus_is_refused_too(prepare, sources, tmp_path):
    prepare(*sources, **GIVEN)
    (tmp_path / "corpus" / "corpus.json").write_text("{")

    with pytest.raises(UserError, match=r"holds a damaged corpus.*--overwrite"):
        prepare(*sources, **GIVEN)
    prepare(*sources, **GIVEN, overwrite=True)


def test_a_folder_that_was_killed_while_it_was_emptied_takes_another_corpus(prepare, sources, tmp_path):
    (tmp_path / "corpus" / ".work").mkdir(parents=True)
    (tmp_path / "corpus" / ".work" / "write_00000-0.error").write_text("of an earlier corpus")
    prepare(*sources, **GIVEN)
    assert (tmp_path / "corpus" / "corpus.json").exists()
    assert not (tmp_path / "corpus" / ".work").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_something_else_is_never_written(prepare, sources, tmp_path, overwrite):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").write_text("x")

    with pytest.raises(UserError, match=r"is not empty and holds no corpus \(thesis\.tex\)"):
        prepare(*sources, **GIVEN, overwrite=overwrite)
    assert list(all_files(tmp_path / "corpus")) == ["thesis.tex"]


def test_a_file_in_the_place_of_the_folder_is_said(prepare, sources, tmp_path):
    (tmp_path / "corpus").write_text("x")

    with pytest.raises(UserError, match="is a file"):
        prepare(*sources, **GIVEN)


@pytest.mark.parametrize("own", [{"shard_tokens": 500, "overwrite": True}, {"limit_tokens": 10**6}], ids=str)
def test_a_corpus_that_others_write_is_refused_to_who_cannot_join(prepare, sources, tmp_path, own):
    output, begun = tmp_path / "corpus", {**GIVEN, **{key: own[key] for key in own if key == "limit_tokens"}}
    killed_behind(0, lambda: prepare(*sources, **begun))
    kept = all_files(output)
    lock = try_lock(output / ".work" / "commands" / "another.lock")
    with pytest.raises(UserError, match="Another process is writing a corpus into"):
        prepare(*sources, **{**begun, **own})
    assert all_files(output) == kept
    lock.release()
    prepare(*sources, **begun)
    assert not (output / "unfinished").exists()
    assert not (output / LOCK_NAME).exists()


def test_the_lock_holds_where_only_files_open_for_writing_can_be_locked(tmp_path, monkeypatch):
    """D9: on NFS an exclusive lock needs a file that is open for writing (flock(2))."""
    real = fcntl.flock

    def as_on_nfs(file, operation):
        descriptor = file if isinstance(file, int) else file.fileno()
        if operation & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", as_on_nfs)
    output = tmp_path / "corpus"
    with locked_output(output), pytest.raises(UserError, match="Another process"), locked_output(output):
        pass


def test_a_failed_start_leaves_no_folder_behind(prepare, write_jsonl, tmp_path):
    with pytest.raises(UserError):
        prepare(write_jsonl("a.jsonl", ["x"]), text_field="body", output=tmp_path / "deep" / "corpus")
    with pytest.raises(UserError, match="no such file or directory"):
        prepare(tmp_path / "nowhere", output=tmp_path / "never")

    assert not (tmp_path / "never").exists()


def test_a_full_disk_is_said_and_then_it_goes_on(prepare, sources, tmp_path, monkeypatch):
    real, is_full = os.fsync, itertools.count()

    def full(descriptor):
        # While the second group is written.
        if (tmp_path / "corpus" / "unfinished" / "00000").exists() and next(is_full) == 3:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((UserError, CorpusError), match="No space left on device"):
        prepare(*sources, **GIVEN)
    monkeypatch.setattr(os, "fsync", real)
    assert not list((tmp_path / "corpus").rglob(".*.partial"))

    assert prepare(*sources, **GIVEN).num_kept_shards == 2


def test_ctrl_c_says_what_stays_and_leaves_a_folder_to_resume_from(sources, tokenizer_folder, tmp_path, monkeypatch):
    settings, real = PreprocessSettings(tokenizer=str(tokenizer_folder), **GIVEN), writing.check_sources

    def interrupted(accounts, *others):
        for source, account in accounts:
            real([(source, account)], *others)
            if source.name.endswith("b.jsonl"):
                raise KeyboardInterrupt

    monkeypatch.setattr(writing, "check_sources", interrupted)
    said = "interrupted: 1 of 2 source groups finished; the same command writes the rest"
    with pytest.raises(KeyboardInterrupt, match=said):
        preprocess([str(source) for source in sources], tmp_path / "corpus", settings=settings)
    monkeypatch.setattr(writing, "check_sources", real)

    result = preprocess([str(source) for source in sources], tmp_path / "corpus", settings=settings)
    assert result.num_kept_shards == 2
    assert result.manifest.documents == 12
