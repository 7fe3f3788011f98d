"""A run's settings against the corpora they name."""

import pytest

from tests.support.checkpoints import states_of, write_checkpoint
from tests.support.runs import write_run
from toolkit.core.errors import CorpusError, SettingsError
from toolkit.data import EncodingEntry, TextEntry, read_manifest, write_manifest
from toolkit.data.corpus.manifest import FrameEntry
from toolkit.run.data import open_run_data
from toolkit.run.identity import snapshot
from toolkit.run.load import declare_run, read_resolved, to_toml
from toolkit.run.resolve import resolve_run


def _unset_vocabulary(folder):
    """The run file without its model.vocab_size."""
    path = write_run(folder)
    path.write_text(path.read_text().replace("vocab_size = 97\n", ""))
    return str(path)


def test_the_vocabulary_is_the_tokenizers_rounded_up(tmp_path):
    settings = open_run_data(declare_run(_unset_vocabulary(tmp_path))).run.settings
    assert settings.model.vocab_size == 128


def test_a_resumed_run_keeps_the_vocabulary_it_was_started_with(tmp_path):
    """Runs from before the rounding have the tokenizer's own size."""
    run_file = _unset_vocabulary(tmp_path)
    before = declare_run(run_file, ["model.vocab_size=97", "precision=fp32"])
    settings = open_run_data(before).run.settings
    tokenizer = tmp_path / "corpus" / "tokenizer"
    saved = tmp_path / "run" / "checkpoints"
    write_checkpoint(saved, 10, states=states_of(10), tokenizer_folder=tokenizer, settings=snapshot(settings))
    run = resolve_run(declare_run(run_file), ds_config="zero1", num_ranks=1)
    assert run.settings.model.vocab_size == 97
    assert run.settings.precision == "fp32"


def test_a_larger_vocabulary_stays(tmp_path):
    settings = open_run_data(declare_run(str(write_run(tmp_path)), ["model.vocab_size=128"])).run.settings
    assert settings.model.vocab_size == 128


def _blend(*folders) -> str:
    """`--set data.train=[...]` with these corpora, the second one with weight 2, and so on."""
    entries = ", ".join(f'{{path="{folder}", weight={number}}}' for number, folder in enumerate(folders, start=1))
    return f"data.train=[{entries}]"


def test_a_blend_has_the_vocabulary_of_its_corpora(tmp_path):
    declared = declare_run(str(write_run(tmp_path)), [_blend(tmp_path / "corpus", tmp_path / "validation")])
    assert [(entry.path, entry.weight) for entry in declared.settings.data.train] == [
        (str(tmp_path / "corpus"), 1.0),
        (str(tmp_path / "validation"), 2.0),
    ]
    assert open_run_data(declared).run.settings.model.vocab_size == 97


def _encoded(folder, *, front=(), back=(0,), frame=True, **rules):
    """Let a corpus record how it was encoded; without a frame, as earlier versions did."""
    rules = {"parse_special_text": True, "add_bos": True, "add_eod": True} | rules
    given = FrameEntry(front=front, back=back) if frame else None
    manifest = read_manifest(folder)
    entry = manifest.tokenizer.model_copy(update={"encoding": EncodingEntry(**rules, frame=given)})
    write_manifest(folder, manifest.model_copy(update={"tokenizer": entry, "manifest_sha256": ""}))


@pytest.mark.parametrize("other", [{"back": ()}, {"front": (2,)}, {"back": (1, 0)}, {"back": (), "add_eod": False}])
@pytest.mark.parametrize("key", ["data.validation", "schedule.1.data.train", "data.train"])
def test_corpora_whose_documents_end_differently_are_refused(tmp_path, key, other):
    run_file = str(write_run(tmp_path))
    _encoded(tmp_path / "corpus")
    _encoded(tmp_path / "validation", **other)
    change = _blend(tmp_path / "corpus", tmp_path / "validation")
    given = {
        "data.validation": [],
        "schedule.1.data.train": [f"schedule.1.data={{train='{tmp_path / 'validation'}'}}"],
        "data.train": [change],
    }
    validation = [] if key == "data.validation" else [f"data.validation={tmp_path / 'corpus'}"]
    named = "data.train.1.path" if key == "data.train" else key
    with pytest.raises(SettingsError, match=rf"have nothing before, id 0 after, and those of {named}"):
        open_run_data(declare_run(run_file, [*given[key], *validation]))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"parse_special_text": False}, "different --special-text;"),
        ({"parse_special_text": False, "frame": False}, "different --special-text;"),
        ({"add_eod": False, "frame": False}, "different --eod or --no-eod;"),
        ({"add_bos": False}, ""),  # where the tokenizer has no beginning, and the frames are equal
        ({"frame": False}, ""),
    ],
)
def test_other_rules_are_said_where_the_ids_around_documents_are_equal_or_unknown(tmp_path, rules, said):
    """Corpora of earlier versions stay usable together."""
    run_file = str(write_run(tmp_path))
    _encoded(tmp_path / "corpus")
    _encoded(tmp_path / "validation", **rules)
    described = open_run_data(declare_run(run_file)).describe()
    assert ("were preprocessed with" in described) == bool(said)
    assert said in described


@pytest.mark.parametrize(
    ("lost", "unknown", "expected"),
    [
        (10, 0, []),
        (11, 0, ["1.1 % of the characters in a sample cannot be read from the tokens (ж я)"]),
        (0, 1, ["50 % of the tokens are the unknown token"]),
    ],
)
def test_text_that_tokens_do_not_say_is_told_above_one_percent(tmp_path, lost, unknown, expected):
    run_file, folder = str(write_run(tmp_path)), tmp_path / "validation"
    manifest = read_manifest(folder)
    text = TextEntry(
        bytes=9000,
        unknown_tokens=unknown * manifest.tokens // 2,
        sampled_characters=1000,
        lost_characters=lost,
        often_lost="ж я" if lost else "",
    )
    write_manifest(folder, manifest.model_copy(update={"text": text, "manifest_sha256": ""}))

    said = open_run_data(declare_run(run_file)).corpora.lost_text()
    assert said == [f"data.validation ({folder}): {what}" for what in expected]
    assert all(line in open_run_data(declare_run(run_file)).describe() for line in said)


def test_one_corpus_twice_in_a_blend_is_refused(tmp_path):
    run_file = write_run(tmp_path)
    again = f"{tmp_path}/validation/../corpus/"
    with pytest.raises(SettingsError, match=r"data.train.0.path and data.train.2.path both name"):
        open_run_data(declare_run(str(run_file), [_blend(tmp_path / "corpus", tmp_path / "validation", again)]))


def test_weights_by_temperature_follow_from_the_tokens(tmp_path):
    run_file = str(write_run(tmp_path))
    both = f"data.train=[{{path='{tmp_path / 'corpus'}'}}, {{path='{tmp_path / 'validation'}'}}]"
    phases = (
        '{objective="clm", steps=4}, {objective="mlm", steps=2, data={weights={temperature=0.0}}}, '
        f'{{objective="mlm", steps=2, data={{train="{tmp_path / "validation"}"}}}}'
    )
    declared = declare_run(run_file, [both, "data.weights.temperature=0.7", f"schedule=[{phases}]"])
    data = open_run_data(declared)
    first, second, last = (part.corpora for part in data.training)
    large, small = (named.corpus.num_tokens for named in first)
    assert large > 5 * small
    assert [named.weight for named in first] == pytest.approx([large**0.7, small**0.7], rel=1e-5)
    assert [named.weight for named in second] == [1.0, 1.0]
    assert [named.weight for named in last] == [1.0]
    assert "a blend of 2 corpora in shares of their tokens ^ 0.7, 32 rows in phase 1:" in data.describe()
    assert f"{100 / (1 + (small / large) ** 0.7):.2f}% of phase 1 takes" in data.describe()
    assert declared.plan.describe_changes(declared.plan.schedule.phases[1]).endswith(", temperature 0")
    (tmp_path / "resolved.toml").write_text(to_toml(declared.settings))
    resolved = read_resolved(tmp_path / "resolved.toml")
    assert (resolved.settings.data, resolved.plan.data) == (declared.settings.data, declared.plan.data)


def test_a_missing_corpus_of_a_blend_is_named(tmp_path):
    declared = declare_run(str(write_run(tmp_path)), [_blend(tmp_path / "corpus", tmp_path / "nowhere")])
    with pytest.raises(CorpusError, match="nowhere"):
        open_run_data(declared)
