"""Groups of sources, written by tasks and by several commands: the bytes of one command that writes them in order."""

import gzip
import os
import random
import shlex

import pytest

from tests.preprocess.test_preprocess_restart import all_files, killed_behind, run_and_die
from tests.support.slurm import Slurm
from tests.support.text import sample_documents
from toolkit.core.errors import UserError
from toolkit.preprocess.program import preprocess
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.writer import groups
from toolkit.preprocess.writer.corpus import UnfinishedCorpus
from toolkit.preprocess.writer.groups import SourceGroup, written_groups
from toolkit.work import claims
from toolkit.work.commands import command_name

GIVEN = {"shard_tokens": 400, "max_bad_fraction": 1.0, "holdout": 0.3}


@pytest.fixture
def sources(write_jsonl, monkeypatch):
    """Six groups of two sources, the third without a document."""
    monkeypatch.setattr(groups, "group_slices", lambda sizes: [slice(start, start + 2) for start in range(0, 12, 2)])
    sources = [write_jsonl(f"{seed:02}.jsonl", [*sample_documents(8, seed=seed)]) for seed in range(12)]
    sources[4:6] = [source.with_suffix(".txt") for source in sources[4:6]]
    for source in sources[4:6]:
        source.touch()
    return sources


def in_child(run):
    """The process id of a child that runs this, as a command of its own, and ends with 0 if it ends well."""
    pid = os.fork()
    if pid == 0:
        command_name.cache_clear()
        try:
            run()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def write_out_of_order(prepare, monkeypatch):
    """Begin a corpus and write these of its groups, as other commands do that were killed."""

    def write(sources, output, numbers, **given):
        killed_behind(0, lambda: prepare(*sources, output=output, **given))
        for number in numbers:
            missing = UnfinishedCorpus.missing

            def one(self, number=number, missing=missing):
                return [group for group in missing(self) if group.number == number]

            with monkeypatch.context() as patch:
                patch.setattr(UnfinishedCorpus, "missing", one)
                patch.setattr(UnfinishedCorpus, "begin_merge", lambda self: False)
                with pytest.raises(AssertionError):
                    prepare(*sources, output=output, **given)
            assert number in written_groups(output)

    return write


def test_groups_in_any_order_make_the_corpus_of_one_command(prepare, sources, tmp_path, write_out_of_order):
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    write_out_of_order(sources, tmp_path / "shared", [4, 1, 2], **GIVEN)
    result = prepare(*sources, output=tmp_path / "shared", **GIVEN)

    assert result.num_kept_shards > 1
    assert all_files(tmp_path / "shared") == all_files(tmp_path / "whole")
    assert not (tmp_path / "shared" / "unfinished").exists()


def test_a_limit_is_exact_where_a_group_before_the_last_one_has_other_sources(prepare, sources, tmp_path, monkeypatch):
    given = {"limit_documents": 20, "engine": "reference"}
    with monkeypatch.context() as patch:
        patch.setattr(UnfinishedCorpus, "begin_merge", lambda self: False)
        with pytest.raises(AssertionError):
            prepare(*sources, **given)
    assert list(written_groups(tmp_path / "corpus")) == [0, 1]

    for output in (tmp_path / "corpus", tmp_path / "whole"):
        prepare(*sources, output=output, exclude=("00.jsonl",), **given)
    assert all_files(tmp_path / "corpus") == all_files(tmp_path / "whole")


def test_commands_at_the_same_time_of_which_one_is_killed_make_it_too(
    prepare, sources, tokenizer_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(claims, "_SECONDS_BETWEEN_LOOKS", 0.02)
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    expected, output, chance = all_files(tmp_path / "whole"), tmp_path / "shared", random.Random(0)

    def command():
        settings = PreprocessSettings(tokenizer=str(tokenizer_folder), **GIVEN)
        preprocess([str(source) for source in sources], output, settings=settings)

    for number in [chance.randrange(90) for _ in range(5)]:
        killed = in_child(lambda number=number: run_and_die(number, command))
        others = [in_child(command) for _ in range(2)]
        codes = [ended(pid) for pid in [killed, *others]]
        # One that begins when it is finished is refused, as any command is.
        assert 0 in codes[1:]
        # The last one may be killed while it removes what commands say to one another.
        made = {name: content for name, content in all_files(output).items() if not name.startswith(".work/")}
        assert made == expected
        for path in sorted(output.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def test_tasks_are_processes_that_make_it_too(prepare, sources, tmp_path):
    prepare(*sources, output=tmp_path / "whole", **GIVEN)
    prepare(*sources, output=tmp_path / "shared", tasks=2, **GIVEN)

    assert all_files(tmp_path / "shared") == all_files(tmp_path / "whole")
    logs = [log.read_text() for log in (tmp_path / ".shared.tasks").iterdir()]
    assert len(logs) == 2  # of which the second may have come too late
    assert sum(log.count("--- write ") for log in logs) == 6


def test_what_fails_is_named_and_the_rest_is_finished(prepare, write_jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    sources = [write_jsonl(f"{name}.jsonl", list(sample_documents(5, seed=3))) for name in "abc"]
    broken = tmp_path / "b.jsonl.gz"
    broken.write_bytes(b"no gzip")
    sources[1] = broken
    with pytest.raises(
        UserError, match=r"(?s)1 source group of 3 failed; the others are .*could not read the source .*b\.jsonl\.gz"
    ):
        prepare(*sources)
    assert list(written_groups(tmp_path / "corpus")) == [0, 2]
    with pytest.raises(UserError, match=r"b\.jsonl\.gz as gzip"):
        prepare(*sources)

    # Nothing of what is done came from it, so that it may be mended.
    broken.write_bytes(gzip.compress(sources[0].read_bytes()))
    assert prepare(*sources).num_kept_shards == 2
    prepare(*sources, output=tmp_path / "whole")
    assert all_files(tmp_path / "corpus") == all_files(tmp_path / "whole")


def test_bad_rows_are_judged_in_the_order_of_the_sources(
    prepare, write_jsonl, tmp_path, monkeypatch, write_out_of_order
):
    """In all, one row in eight is bad; up to the end of the second source, one in four."""
    good = ["a text"] * 4
    sources = [
        write_jsonl(f"{name}.jsonl", rows)
        for name, rows in (("a", good), ("b", [*good[:2], b"{", b"["]), ("c", good * 2))
    ]
    with pytest.raises(UserError) as local:
        prepare(*sources, max_bad_fraction=0.2)
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    output = tmp_path / "shared"
    write_out_of_order(sources, output, [2, 1], max_bad_fraction=0.2)
    with pytest.raises(UserError) as shared:
        prepare(*sources, output=output, max_bad_fraction=0.2)

    assert str(shared.value) == str(local.value)
    assert "2 of 8 rows read so far (25.0%)" in str(local.value)
    assert prepare(*sources, output=output, max_bad_fraction=0.25).manifest.skipped == {"broken JSON": 2}


def test_jobs_of_slurm_run_the_command_as_one_task(prepare, sources, tokenizer_folder, tmp_path, monkeypatch, capsys):
    slurm = Slurm(tmp_path, monkeypatch)
    settings = PreprocessSettings(
        tokenizer=str(tokenizer_folder), executor="slurm", tasks=2, workers=3, add_eod=False, overwrite=True, **GIVEN
    )
    output, names = tmp_path / "the corpus", [str(source) for source in sources]
    for number in (2, 2):
        assert preprocess(names, output, settings=settings) is None
        assert [name for name, _ in slurm.jobs.values()] == [f"the corpus-{job}" for job in range(1, number + 1)]
    assert f"{output}: 0 of 6 source groups written\nthe corpus-1: job 1, submitted" in capsys.readouterr().out
    assert "--cpus-per-task=3" in slurm.words(1)
    check, _, command = slurm.words(1)[-1].partition(" || exec ")
    words = shlex.split(command)
    assert words[1:4] == ["-m", "toolkit.cli", "preprocess"]
    assert {"--no-eod", "--workers=3", "--shard-tokens=400", f"--output={output}"} < set(words)
    assert not [word for word in words if word.startswith(("--overwrite", "--executor", "--no-bos"))]
    assert os.system(check) != 0
    prepare(*sources, output=output, add_eod=False, **GIVEN)
    assert os.system(check) == 0


@pytest.mark.parametrize("names", ["b", "ab"])
@pytest.mark.parametrize(("bad", "kept"), [([b"{"] * 9, 2), (["a text"] * 9 + [b"{"], 0)])
def test_leaving_a_source_out_loses_no_other_group(prepare, write_jsonl, tmp_path, monkeypatch, bad, kept, names):
    """Neither where a source is bad, nor where its group is finished and all rows have too many bad ones."""
    texts = list(sample_documents(5, seed=3))
    sources = [write_jsonl(f"in/{name}.jsonl", bad if name == "b" else texts) for name in "abcdef"]
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", sources[0].stat().st_size + 1)
    given = {"max_bad_fraction": 1.0 if kept else 0.01, "engine": "reference"}
    with pytest.raises(UserError):
        prepare(tmp_path / "in", **given)

    given["exclude"] = tuple(f"{name}.jsonl" for name in names)
    assert prepare(tmp_path / "in", **given).num_kept_shards == kept
    prepare(tmp_path / "in", output=tmp_path / "whole", **given)
    assert all_files(tmp_path / "corpus") == all_files(tmp_path / "whole")


def test_a_group_without_sources_has_a_name() -> None:
    """It may fail too, and the message names it."""
    assert str(SourceGroup(3, [], [])) == "group 3 (all sources excluded)"
