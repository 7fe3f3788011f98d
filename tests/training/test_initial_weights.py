"""Runs that start from weights that are there already: imported ones, and those of another run."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from tests.support.hf_decoders import save_decoder
from tests.support.runs import RunCase, write_run
from tests.support.text import sample_documents
from tokenization import train_bpe
from toolkit.checkpoint.manifest import CheckpointManifest, manifest_bytes
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import from_hf, to_hf
from toolkit.conversion.merging import merge
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.data import Corpus, write_manifest
from toolkit.launching.train import show_run
from toolkit.model import ModelSettings
from toolkit.model.growth import Growth
from toolkit.preprocess.program import preprocess
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.run import load_run
from toolkit.run.comparison import check_same_run
from toolkit.run.continuation import Continuation
from toolkit.run.data import open_run_data
from toolkit.run.identity import snapshot
from toolkit.run.load import declare_run
from toolkit.run.resolve import resolve_run
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.training import pretrain

_SMALL = (
    *("data.sequence_length=64", "precision=fp32", "train.global_batch_rows=4"),
    *("lr.warmup_steps=0", "log.tensorboard=false"),
)


def _checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, with its run file and corpora."""
    place = tmp_path_factory.mktemp("first")
    run_file = write_run(place)
    RunCase(
        str(run_file), overrides=("schedule=[{objective='clm', steps=3}]", "lr.warmup_steps=0", "lr.decay_steps=0")
    )()
    return place


def _second(first: Path, folder: Path, *overrides: str) -> list[str]:
    """Settings of a run from the first one's end, without a model of its own."""
    text = (first / "run.toml").read_text()
    start, end = text.index("[model]"), text.index("[data]")
    (folder / "second.toml").write_text(text[:start] + text[end:])
    return [
        f"run.dir={folder / 'second'}", f"init.from={first / 'run'}", "schedule=[{objective='mlm', steps=2}]",
        "lr.warmup_steps=0", "lr.decay_steps=0", "checkpoint.every=1", "checkpoint.keep=9", *overrides,
    ]  # fmt: skip


@pytest.mark.parametrize("stage", ["zero0", "zero2", "zero3"])
@pytest.mark.parametrize("optimizer", ["keep", "reset"])
def test_weights_and_moments_begin_where_they_are_told_to(
    first: Path, tmp_path: Path, stage: str, optimizer: str
) -> None:
    """A learning rate next to nothing leaves the weights; the moments of the first step tell what they began with."""
    overrides = _second(first, tmp_path, f"init.optimizer={optimizer}", "lr.peak=1e-30")
    pretrain(load_run(str(tmp_path / "second.toml"), overrides), ds_config=stage)
    before, after = open_checkpoint(first / "run"), open_checkpoint(_checkpoint(tmp_path / "second", 1))
    assert before.names == after.names
    assert all(torch.equal(before.weight(name), after.weight(name)) for name in before.names)
    assert (after.manifest.step, after.manifest.data_position) == (1, 8)
    kept = optimizer == "keep"
    assert after.manifest.optimizer_step == (4 if kept else 1)
    assert after.manifest.origin == {"run": "run", "step": "3"}
    # Squares of gradients: 0.95 of what was there, and 0.05 of the new ones, which the clipped norm bounds by 1.
    moments = after.parameter("model.norm.weight").exp_avg_sq
    remembered = 0.95 * before.parameter("model.norm.weight").exp_avg_sq
    assert bool((moments >= remembered * 0.999).all()) or not kept
    again = open_checkpoint(_checkpoint(tmp_path / "second", 2))
    assert again.manifest.optimizer_step == (5 if kept else 2)


def test_a_resumed_run_does_not_ask_for_its_first_weights_again(first: Path, tmp_path: Path) -> None:
    shutil.copytree(first / "run", tmp_path / "moved")
    overrides = [*_second(first, tmp_path), f"init.from={tmp_path / 'moved'}"]
    pretrain(load_run(str(tmp_path / "second.toml"), overrides), ds_config="zero0")
    whole = open_checkpoint(_checkpoint(tmp_path / "second", 2))
    expected = {name: whole.weight(name) for name in whole.names}
    shutil.rmtree(_checkpoint(tmp_path / "second", 2))
    shutil.rmtree(tmp_path / "moved")
    pretrain(load_run(str(tmp_path / "second.toml"), overrides), ds_config="zero0")
    resumed = open_checkpoint(_checkpoint(tmp_path / "second", 2))
    assert all(torch.equal(resumed.weight(name), weight) for name, weight in expected.items())
    assert resumed.manifest.origin == whole.manifest.origin


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/step-00000003"])
def test_the_run_file_names_the_checkpoint_of_a_run_that_goes_on(first: Path, tmp_path: Path, place: str) -> None:
    """Until the new run has a checkpoint of its own, it can be started again from the same weights."""
    parent = shutil.copytree(first / "run", tmp_path / "parent")
    overrides = [*_second(first, tmp_path), f"init.from={parent / place}", "model.vocab_size=97"]
    run = resolve_run(declare_run(str(tmp_path / "second.toml"), overrides), ds_config="zero1", num_ranks=1)
    run.folder.path.mkdir()
    run.write()
    later = shutil.copytree(_checkpoint(parent, 3), _checkpoint(parent, 4))
    manifest = open_checkpoint(later).manifest.model_copy(update={"step": 4})
    (later / "manifest.json").write_bytes(manifest_bytes(manifest))
    again = resolve_run(declare_run(str(run.folder.settings_file)), ds_config="zero1", num_ranks=1)
    assert again.settings.init is not None
    assert again.settings.init.source == str(_checkpoint(parent, 3))
    found = again.continuation
    assert (found.place, found.step) == (str(_checkpoint(parent, 3)), 0)
    assert found.manifest is not None
    own = found.manifest.model_copy(update={"settings": snapshot(again.settings)})
    for given in overrides, [f"init.from={_checkpoint(parent, 3)}"]:
        kept = Continuation(own).keep_choices(declare_run(str(run.folder.settings_file), given))
        check_same_run(own.settings, kept.settings)


def _resolve(folder: Path, *overrides: str) -> None:
    resolve_run(declare_run(str(folder / "second.toml"), overrides), ds_config="zero1", num_ranks=1)


def test_another_tokenizer_is_refused_with_the_command(first: Path, tmp_path: Path) -> None:
    documents = random_documents(30, vocabulary_size=97, seed=5)
    other = write_token_corpus(tmp_path / "other", documents, vocabulary_size=97, eos=0, pad=1, mask=3)
    overrides = _second(first, tmp_path, f"data.train={other}", f"data.validation={other}")
    with pytest.raises(SettingsError, match=r"different tokenizers: (.|\n)*toolkit preprocess \.\.\. --tokenizer"):
        _resolve(tmp_path, *overrides)


def test_a_run_that_does_not_fit_its_first_weights_is_refused_before_any_rank(first: Path, tmp_path: Path) -> None:
    """As a dry run and `toolkit train` see it; ranks would only say it after they were started."""
    overrides = _second(first, tmp_path)
    with pytest.raises(SettingsError, match=r"model\.num_hidden_layers: there 2, here 3"):
        _resolve(tmp_path, *overrides, "model.num_hidden_layers=3")
    manifest = open_checkpoint(first / "run").manifest
    bare = _weights_only(first / "run", tmp_path / "bare", manifest.model_copy(update={"has_moments": False}))
    with pytest.raises(SettingsError, match=r"no optimizer state"):
        _resolve(tmp_path, *overrides, f"init.from={bare}", "init.optimizer=keep")
    model = {**manifest.settings["model"], "num_key_value_heads": None}
    del model["family"]
    older = manifest.model_copy(update={"settings": {**manifest.settings, "model": model}})
    source = _weights_only(first / "run", tmp_path / "older", older)
    with pytest.raises(SettingsError, match=r"model\.family: there 'llama', here 'modernbert'"):
        _resolve(tmp_path, *overrides, f"init.from={source}", "model.family=modernbert")


def _weights_only(run: Path, folder: Path, manifest: CheckpointManifest) -> Path:
    shutil.copytree(open_checkpoint(run).path, folder)
    (folder / "manifest.json").write_bytes(manifest_bytes(manifest))
    return folder


def test_what_a_whole_shape_leaves_open_comes_from_the_weights(first: Path, tmp_path: Path) -> None:
    """Rotary angles have no tensor that could disagree, and a default in their place would be another model."""
    manifest = open_checkpoint(first / "run").manifest
    model = {**manifest.settings["model"], "rope_theta": 500_000.0, "max_position_embeddings": 77}
    source = _weights_only(
        first / "run", tmp_path / "far", manifest.model_copy(update={"settings": {**manifest.settings, "model": model}})
    )
    overrides = [
        *_second(first, tmp_path),
        f"init.from={source}",
        "model.hidden_size=32",
        "model.intermediate_size=48",
        "model.num_hidden_layers=2",
        "model.num_attention_heads=4",
    ]
    settings = load_run(str(tmp_path / "second.toml"), overrides)
    assert (settings.model.rope_theta, settings.model.max_position_embeddings) == (500_000.0, 77)
    assert settings.model.num_key_value_heads == 2
    given = load_run(str(tmp_path / "second.toml"), [*overrides, "model.rope_theta=20000.0"])
    assert given.model.rope_theta == 20_000.0


def test_a_damaged_manifest_is_passed_over_for_the_shape_too(first: Path, tmp_path: Path) -> None:
    """A run without [model] resumes from the checkpoint before a damaged one, like any other run."""
    overrides = _second(first, tmp_path)
    pretrain(load_run(str(tmp_path / "second.toml"), overrides), ds_config="zero0")
    (_checkpoint(tmp_path / "second", 2) / "manifest.json").write_text("{")
    outcome = pretrain(load_run(str(tmp_path / "second.toml"), overrides), ds_config="zero0")
    assert str(outcome) == "finished at step 2"
    assert open_checkpoint(tmp_path / "second").manifest.step == 2


def test_the_origin_is_the_run_that_the_weights_were_taken_from(first: Path, tmp_path: Path) -> None:
    """Of a chain the last link, by its run's name wherever the checkpoint lies; an imported model at the far end."""
    overrides = _second(first, tmp_path)
    middle = tmp_path / "kept" / "apart"
    shutil.copytree(_checkpoint(first / "run", 3), middle)
    pretrain(load_run(str(tmp_path / "second.toml"), [*overrides, f"init.from={middle}"]), ds_config="zero0")
    second = open_checkpoint(tmp_path / "second").manifest
    assert second.origin == {"run": "run", "step": "3"}
    third = [*overrides, f"init.from={tmp_path / 'second'}", f"run.dir={tmp_path / 'third'}"]
    pretrain(load_run(str(tmp_path / "second.toml"), third), ds_config="zero0")
    assert open_checkpoint(tmp_path / "third").manifest.origin == {"run": "second", "step": "2"}
    imported = second.model_copy(update={"origin": {"model": "hub/decoder", "family": "llama"}})
    source = _weights_only(tmp_path / "second", tmp_path / "adapted", imported)
    fourth = [*overrides, f"init.from={source}", f"run.dir={tmp_path / 'fourth'}"]
    pretrain(load_run(str(tmp_path / "second.toml"), fourth), ds_config="zero0")
    manifest = open_checkpoint(tmp_path / "fourth").manifest
    assert manifest.first_weights == "step 2 of the run second, which started from hub/decoder (llama)"


def test_a_dry_run_says_where_the_weights_begin(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*_second(first, tmp_path), "init.optimizer=keep"]
    run_file = str(tmp_path / "second.toml")
    show_run(run_file, overrides, ds_config="zero1", num_procs=1)
    assert f"# starting from {_checkpoint(first / 'run', 3)} (step 3), with its optimizer\n" in capsys.readouterr().out
    pretrain(load_run(run_file, overrides), ds_config="zero0")
    capsys.readouterr()
    show_run(run_file, overrides, ds_config="zero1", num_procs=1)
    assert f"# resuming from step 2 in {tmp_path / 'second'}; init.from" in capsys.readouterr().out
    with pytest.raises(SettingsError, match=r"started with other settings:\n  lr\.peak: was 0\.01, now 0\.5"):
        show_run(run_file, [*overrides, "lr.peak=0.5"], ds_config="zero1", num_procs=1)


def test_other_positions_are_told(first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They make a context longer, or another model by mistake; no shape would say which."""
    overrides = [*_second(first, tmp_path), "model.rope_theta=20000.0", 'model.rope_scaling.rope_type="linear"']
    overrides += ["model.rope_scaling.factor=4.0"]
    run_file = str(tmp_path / "second.toml")
    show_run(run_file, overrides, ds_config="zero1", num_procs=1)
    dry = capsys.readouterr().out
    pretrain(load_run(run_file, overrides), ds_config="zero0")
    started = capsys.readouterr().out
    for key, there, here in (("rope_theta", 10_000.0, 20_000.0), ("rope_scaling.factor", None, 4.0)):
        line = f"model.{key}: there {there}, here {here}"
        assert line in dry
        assert line in started.split("trained with other rotary embeddings: ")[1]


def test_rows_that_are_longer_than_the_model_is_meant_for_are_told(first: Path, tmp_path: Path) -> None:
    overrides = _second(first, tmp_path)
    assert "max_position" not in open_run_data(declare_run(str(tmp_path / "second.toml"), overrides)).describe()
    data = open_run_data(declare_run(str(tmp_path / "second.toml"), [*overrides, "model.max_position_embeddings=63"]))
    assert data.describe().endswith(
        "\n  rows (64 tokens) exceed model.max_position_embeddings=63, the limit that exports will declare"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("init.from=3", r"invalid value for init\.from: got 3\. Give a folder"),
        ("init.from=", r"invalid value for init\.from: got ''\. Give a folder"),
    ],
)
def test_an_init_without_a_source_is_named(first: Path, tmp_path: Path, override: str, message: str) -> None:
    overrides = [*_second(first, tmp_path), override]
    with pytest.raises(SettingsError, match=message):
        load_run(str(tmp_path / "second.toml"), overrides)


def test_an_imported_decoder_is_adapted_and_exported(tmp_path: Path) -> None:
    save_decoder("qwen3", tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "imported")
    imported = open_checkpoint(tmp_path / "imported")
    corpus = _corpus_of(tmp_path, imported.manifest)
    overrides = [
        f"run.dir={tmp_path / 'run'}",
        f"init.from={tmp_path / 'imported'}",
        f"data.train={corpus}",
        *(*_SMALL, "schedule=[{objective='mlm', steps=2}]", "lr.decay_steps=0"),
    ]
    settings = load_run("adapt", overrides)
    assert (settings.model.qk_norm, settings.model.head_dim, settings.model.vocab_size) == (True, 32, 413)
    with pytest.raises(SettingsError, match=r"has no optimizer state: it is an imported model"):
        pretrain(load_run("adapt", [*overrides, "init.optimizer=keep"]), ds_config="zero3")
    pretrain(settings, ds_config="zero3")
    checkpoint = open_checkpoint(tmp_path / "run")
    assert checkpoint.manifest.origin == {"model": "model", "family": "qwen3"}
    assert not torch.equal(checkpoint.weight("model.norm.weight"), imported.weight("model.norm.weight"))
    report = to_hf(tmp_path / "run", tmp_path / "out")
    assert report.architecture == "Qwen3ForCausalLM"
    assert "first weights | model (qwen3)" in (tmp_path / "out" / "README.md").read_text()


def test_a_run_starts_from_a_merge_and_resumes_from_none(
    first: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, merged = str(tmp_path / "second.toml"), tmp_path / "merged"
    overrides = _second(first, tmp_path)
    pretrain(load_run(file, overrides), ds_config="zero0")
    merge([tmp_path / "second"], merged, steps="1..2")
    third = [*overrides, f"init.from={merged}", f"run.dir={tmp_path / 'third'}", "lr.peak=1e-30"]
    with pytest.raises(SettingsError, match=r'init.optimizer="keep", but .*: it is a merge of checkpoints.\nSet init'):
        pretrain(load_run(file, [*third, "init.optimizer=keep"]), ds_config="zero0")
    pretrain(load_run(file, third), ds_config="zero0")
    weights, trained = open_checkpoint(merged), open_checkpoint(_checkpoint(tmp_path / "third", 1))
    assert all(torch.equal(weights.weight(name), trained.weight(name)) for name in weights.names)
    assert trained.manifest.origin == {"run": "second", "step": "2", "merged": "2"}
    assert trained.manifest.first_weights == "a merge of 2 checkpoints up to step 2 of the run second"
    # That of the next run names no merge.
    fourth = [*overrides, f"init.from={tmp_path / 'third'}", f"run.dir={tmp_path / 'fourth'}"]
    pretrain(load_run(file, fourth), ds_config="zero0")
    assert open_checkpoint(tmp_path / "fourth").manifest.origin == {"run": "third", "step": "2"}
    shutil.rmtree(tmp_path / "second/checkpoints")
    shutil.copytree(merged, _checkpoint(tmp_path / "second", 2))
    with pytest.raises(CheckpointError, match=r"step 2 in .* has no optimizer state.*\nMove it elsewhere"):
        pretrain(load_run(file, overrides), ds_config="zero0")


def test_a_larger_model_begins_as_a_smaller_one_tiled(
    first: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """At a rate of 1e-12 no weight moves visibly."""
    larger = ("hidden_size=48", "num_attention_heads=6", "num_key_value_heads=3", "num_hidden_layers=3")
    growing = [*_second(first, tmp_path), "init.grow=tile", *(f"model.{change}" for change in larger), "lr.peak=1e-12"]
    run_file = str(tmp_path / "second.toml")

    RunCase(run_file, overrides=tuple(growing))()

    small, large = open_checkpoint(first / "run"), open_checkpoint(_checkpoint(tmp_path / "second", 1))
    growth = Growth(*(ModelSettings(**each.manifest.settings["model"]) for each in (small, large)))
    assert growth.layers == [0, 1, 1]
    for name in large.names:
        expected = growth.tile(name, small.weight(growth.source(name)))
        torch.testing.assert_close(large.weight(name), expected, rtol=0, atol=1e-9)
    grown = large.manifest.origin["grown"]
    assert grown.startswith("tiled from 2 layers of width 32 and 48, 4 heads (2 of keys) to 3 layers of width 48")
    assert grown.endswith(", 6 heads (3 of keys), layers [0, 1, 1]")
    assert f"(step 3), {grown}, with a new optimizer" in capfd.readouterr().out
    assert (large.manifest.origin["run"], large.manifest.origin["step"]) == ("run", "3")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("model.num_hidden_layers=1",),
            r"num_hidden_layers would shrink(.|\n)*there: 2 layers(.|\n)*here:  1 layer of",
        ),
        (("model.hidden_size=64",), "a head is 8 wide there and 16 here"),
        (("model.rms_norm_eps=0.1",), r"model\.rms_norm_eps: there"),
    ],
)
def test_a_model_that_does_not_grow_is_refused(
    first: Path, tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    declared = declare_run(str(tmp_path / "second.toml"), [*_second(first, tmp_path), "init.grow=tile", *overrides])
    with pytest.raises(SettingsError, match=message):
        resolve_run(declared, ds_config="zero1", num_ranks=1)


def test_an_imported_encoder_takes_the_detour(tmp_path: Path) -> None:
    save_decoder("eurobert", tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "imported", mask_token="mean")
    corpus = _corpus_of(tmp_path, open_checkpoint(tmp_path / "imported").manifest)
    overrides = [
        f"run.dir={tmp_path / 'run'}",
        f"init.from={tmp_path / 'imported'}",
        f"data.train={corpus}",
        *(*_SMALL, "schedule.0.steps=2", "schedule.1.steps=2", "lr.decay_steps=2", "log.every=1"),
    ]
    pretrain(load_run("detour", overrides), ds_config="zero1")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["objective"], line["attention"]) for line in lines] == [
        *[("clm", "causal")] * 2,
        *[("mlm", "bidirectional")] * 2,
    ]
    # 0.1 + 0.9 x (1 - sqrt(1 / 2)) of the peak at the last step.
    assert [line["learning_rate"] for line in lines] == pytest.approx([2e-4, 2e-4, 2e-4, 7.2721e-5], rel=1e-4)


def test_a_modernbert_is_imported_with_another_tokenizer_trained_grown_and_exported(tmp_path: Path) -> None:
    """On real text, from its class to both of its classes."""
    save_decoder("modernbert", tmp_path / "model")
    texts = sample_documents(80)
    train_bpe(texts, vocabulary_size=320, folder=tmp_path / "tokenizer")
    from_hf(tmp_path / "model", tmp_path / "imported", tokenizer=tmp_path / "tokenizer")
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = PreprocessSettings(tokenizer=str(tmp_path / "imported"))
    preprocess([str(tmp_path / "text.jsonl")], tmp_path / "corpus", settings=words)
    overrides = [f"data.train={tmp_path / 'corpus'}", *_SMALL]
    overrides += ["schedule.0.steps=2", "schedule.1.steps=1", "lr.decay_steps=1"]
    begin = [f"run.dir={tmp_path / 'run'}", f"init.from={tmp_path / 'imported'}"]
    pretrain(load_run("detour", [*overrides, *begin]), ds_config="zero1")
    larger = ("hidden_size=96", "intermediate_size=144", "num_attention_heads=6", "num_hidden_layers=6")
    growing = ["init.grow=tile", *(f"model.{change}" for change in larger), f"init.from={tmp_path / 'run'}"]
    pretrain(load_run("detour", [*overrides, f"run.dir={tmp_path / 'large'}", *growing]), ds_config="zero1")
    grown = open_checkpoint(tmp_path / "large").manifest.origin["grown"]
    assert grown.startswith("tiled from 4 layers of width 64 and 96, 4 heads (4 of keys) to 6 layers of width 96")
    for form, auto in (("bidirectional", AutoModelForMaskedLM), ("causal", AutoModelForCausalLM)):
        # Which compares the logits.
        to_hf(tmp_path / "large", tmp_path / form, form=form)
        config = auto.from_pretrained(tmp_path / form).config
        assert (config.hidden_size, config.vocab_size, config.local_attention) == (96, 320, 16)
        assert config.layer_types == ["full_attention", *["sliding_attention"] * 2] * 2


def _corpus_of(folder: Path, imported: CheckpointManifest) -> Path:
    """Made up, with the fingerprint of the tokenizer that its ids would have come from."""
    documents = random_documents(60, vocabulary_size=380, max_length=90, first_id=3, seed=1)
    corpus = write_token_corpus(folder / "corpus", documents, vocabulary_size=381, eos=1, mask=380)
    manifest = Corpus(corpus).manifest
    tokenizer = manifest.tokenizer.model_copy(update={"fingerprint": imported.vocabulary.fingerprint})
    (corpus / "corpus.json").unlink()
    write_manifest(corpus, manifest.model_copy(update={"tokenizer": tokenizer}))
    return corpus
