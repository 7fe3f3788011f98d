import math

import pytest

from toolkit.execution.stages import Stages, hash_of


def _finished(folder):
    (folder / "out").mkdir()
    (folder / "out" / "a.txt").write_text("one")
    (folder / "out" / ".lock").write_text("")
    stages = Stages(folder)
    with stages.working("make", "key"):
        pass
    stages.finish("make", [folder / "out"], facts={"difference": 0.5})
    return Stages(folder)


def test_a_finished_stage_is_known_again(tmp_path):
    stages = _finished(tmp_path)
    assert stages.is_intact("make", "key")
    assert stages["make"].facts == {"difference": 0.5}
    assert list(stages["make"].files) == ["out/a.txt"]


def test_other_inputs_or_another_file_are_not_intact(tmp_path):
    stages = _finished(tmp_path)
    assert not stages.is_intact("make", "another key")
    assert not stages.is_intact("unknown", "key")
    (tmp_path / "out" / "a.txt").write_text("two")
    assert not stages.is_intact("make", "key")
    (tmp_path / "out" / "a.txt").unlink()
    assert not stages.is_intact("make", "key")


def test_an_interrupted_try_counts_towards_the_next_one(tmp_path, monkeypatch):
    clock = iter([0.0, 5.0, 100.0, 103.0, 200.0, 201.0])
    monkeypatch.setattr("toolkit.execution.stages.time.monotonic", lambda: next(clock))
    with pytest.raises(KeyboardInterrupt), Stages(tmp_path).working("make", "key"):
        raise KeyboardInterrupt
    stages = Stages(tmp_path)
    assert not stages.is_intact("make", "key")
    assert stages["make"].seconds == 5.0
    with stages.working("make", "key"):
        pass
    assert stages.finish("make", []).seconds == 8.0
    # A stage that is made anew starts at zero.
    with stages.working("make", "key"):
        pass
    assert stages.finish("make", []).seconds == 1.0


def test_a_damaged_record_counts_as_none(tmp_path):
    (tmp_path / "stages.json").write_text('{"make": {"key"')
    assert Stages(tmp_path).get("make") is None


def test_a_number_that_is_none_keeps_the_records(tmp_path):
    _finished(tmp_path)
    stages = Stages(tmp_path)
    stages.finish("make", [tmp_path / "out"], facts={"lowest": -math.inf, "ratio": math.nan})
    facts = Stages(tmp_path)["make"].facts
    assert facts["lowest"] == -math.inf
    assert math.isnan(facts["ratio"])


def test_a_path_that_no_file_can_have_is_not_intact(tmp_path):
    (tmp_path / "stages.json").write_text(r'{"make": {"key": "key", "files": {"a\u0000b": "0"}}}')
    assert not Stages(tmp_path).is_intact("make", "key")


def test_the_hash_of_a_path_is_that_of_its_content(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("text")
    second.write_text("text")
    assert hash_of(first, {"b": 1, "a": 2}) == hash_of(second, {"a": 2, "b": 1})
    second.write_text("texts")
    assert hash_of(first) != hash_of(second)
    assert hash_of("a", "b") != hash_of("b", "a")
