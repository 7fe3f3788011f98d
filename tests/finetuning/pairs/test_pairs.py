"""Minimal pairs: scores against loops over stock transformers, BLiMP's files, and what a result says."""

import json

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.finetuning.test_encoder_source import GPT_NEO
from tests.support.checkpoints import TINY_VOCABULARY, model_states, write_checkpoint
from tests.support.grids import run_cells_here, write_data
from tests.support.hf_decoders import edit_json
from tests.support.hf_encoders import CLS, EOS, MASK, PAD, plain_tokenizer, save_encoder, template_tokenizer
from tests.support.runs import write_run
from tests.support.text import read_lines, sample_documents, tiny_tokenizer
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import from_hf, to_hf
from toolkit.conversion.weights import settings_of
from toolkit.core.errors import SettingsError, UserError
from toolkit.experiments.finetune import finetune
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.grid.plan import GridPlan
from toolkit.experiments.grid.program import run_grid, show_grid
from toolkit.experiments.report.program import write_report
from toolkit.finetuning import get_task, open_source
from toolkit.finetuning.pairs import likelihood
from toolkit.model import Encoder
from toolkit.model.families import family_of
from toolkit.model.initialization import initialize_
from toolkit.run import load_run
from toolkit.run.identity import snapshot
from toolkit.testing.models import MODEL_OPTIONS, tiny_settings

BLIMP = (
    '{"sentence_good": "Who should Derek hug after shocking Richard?", "sentence_bad": "Who should Derek hug Richard '
    'after shocking?", "field": "syntax", "linguistics_term": "island_effects", "UID": "adjunct_island", '
    '"simple_LM_method": true, "one_prefix_method": false, "two_prefix_method": false, "lexically_identical": true, '
    '"pairID": "0"}\n'
    '{"sentence_good": "What had Theresa walked through while talking about that high school?", "sentence_bad": '
    '"What had Theresa walked through that high school while talking about?", "field": "syntax", "linguistics_term": '
    '"island_effects", "UID": "adjunct_island", "simple_LM_method": true, "one_prefix_method": false, '
    '"two_prefix_method": false, "lexically_identical": true, "pairID": "1"}\n'
)
AGREEMENT = (
    '{"sentence_good": "Katherine can\'t help herself.", "sentence_bad": "Katherine can\'t help himself.", '
    '"one_prefix_prefix": "Katherine can\'t help", "one_prefix_word_good": "herself", "one_prefix_word_bad": '
    '"himself", "field": "morphology", "linguistics_term": "anaphor_agreement", "UID": "anaphor_gender_agreement", '
    '"simple_LM_method": true, "one_prefix_method": true, "two_prefix_method": false, "lexically_identical": false, '
    '"pairID": "0"}\n'
)
"""Lines of the published files."""
PAIRS = [("w1 w2 w3", "w3 w2 w1"), ("w4", "w5 w6"), ("w7 w8 w9 w10 w11 w7", "w7 w8 w12 w9")]


def write_pairs(path, pairs=PAIRS, **more):
    path.write_text("".join(json.dumps({"sentence_good": a, "sentence_bad": b, **more}) + "\n" for a, b in pairs))
    return path


def save_decoder(kind, folder):
    torch.manual_seed(1)
    special = {"vocab_size": 45, "bos_token_id": CLS, "eos_token_id": EOS, "pad_token_id": PAD}
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "gpt_neo":
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **GPT_NEO))
    elif kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=34, **special))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape, **special, initializer_range=0.3))
    model.save_pretrained(folder)
    (template_tokenizer() if kind == "llama" else plain_tokenizer()).save_pretrained(folder)
    return folder


@torch.no_grad()
def slow_causal(model, ids, frame):
    logits = model(input_ids=torch.tensor([ids])).logits[0]
    places = [place for place in range(1, len(ids)) if not frame[place]]
    return sum(float(logits[place - 1].log_softmax(-1)[ids[place]]) for place in places)


@torch.no_grad()
def slow_masked(model, ids, frame, mask_id, offset=0):
    total = 0.0
    for place in (place for place in range(offset, len(ids)) if not frame[place]):
        masked = torch.tensor([[*ids[:place], mask_id, *ids[place + 1 :]]])
        total += float(model(input_ids=masked).logits[0, place - offset].log_softmax(-1)[ids[place]])
    return total


def check_scores(output, tokenizer, pairs, slow):
    """Every score is that of a loop without batches or padding, to 1e-5 of itself."""
    rows = read_lines(output / "predictions.jsonl")
    assert len(rows) == len(pairs)
    for row, pair in zip(rows, pairs, strict=True):
        encoded = [tokenizer(text, return_special_tokens_mask=True) for text in pair]
        expected = [slow(each.input_ids, each.special_tokens_mask) for each in encoded]
        assert [row["good"], row["bad"]] == pytest.approx(expected, rel=1e-5)
        assert row["is_correct"] == (row["good"] > row["bad"])


@pytest.fixture
def small_batches(monkeypatch):
    """Batches of a few copies, some of them padded."""
    monkeypatch.setattr(likelihood, "_MOST_ON_CPU", (16, 2**20))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_decoder_scores_by_the_chain_rule(tmp_path, kind, small_batches):
    """Llama's tokenizer puts a token in front, so that the first word is scored; GPT-2's gets its end of text there."""
    model = save_decoder(kind, tmp_path / "model")
    result = finetune("pairs", model, test=write_pairs(tmp_path / "p.jsonl"), output=tmp_path / "out")
    assert (result.form, result.pairs) == ("causal", len(PAIRS))
    assert result.front == ("<eos>" if kind == "gpt2" else None)
    assert ("front" in json.loads((tmp_path / "out/result.json").read_text())) == (kind == "gpt2")
    stock, front = AutoModelForCausalLM.from_pretrained(model).eval(), [EOS] if kind == "gpt2" else []

    def slow(ids, frame):
        return slow_causal(stock, [*front, *ids], [*(1 for _ in front), *frame])

    check_scores(tmp_path / "out", AutoTokenizer.from_pretrained(model), PAIRS, slow)


@pytest.mark.parametrize("kind", ["eurobert", "bert", "roberta", "modernbert", "ultrabert"])
def test_an_encoder_scores_one_mask_at_a_time(tmp_path, kind, small_batches):
    model = save_encoder(kind, tmp_path / "model")
    result = finetune("pairs", model, test=write_pairs(tmp_path / "p.jsonl"), output=tmp_path / "out")
    assert (result.form, result.pairs, result.made_by["dtype"]) == ("masked", 3, "fp32")
    stock, tokenizer = AutoModelForMaskedLM.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    check_scores(tmp_path / "out", tokenizer, PAIRS, lambda *row: slow_masked(stock, *row, MASK))


def write_trained(folder, shape):
    """A run of CLM, then MLM, with a checkpoint at the end of each; weights are random."""
    model = tiny_settings(vocab_size=TINY_VOCABULARY.size, **shape)
    tokenizer = tiny_tokenizer(folder / "tokenizer")
    encoder = Encoder(model)
    initialize_(encoder, 1)
    settings = {**snapshot(load_run(str(write_run(folder)))), "model": model.model_dump(mode="json")}
    mntp = {**settings, "schedule": [settings["schedule"][0], {**settings["schedule"][1], "objective": "mntp"}]}
    for run, step, own in (("run", 10, settings), ("run", 20, settings), ("mntp", 20, mntp)):
        states = model_states(encoder)
        write_checkpoint(folder / run / "checkpoints", step, states=states, tokenizer_folder=tokenizer, settings=own)
    return folder / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return write_trained(tmp_path_factory.mktemp("trained"), {})


@pytest.fixture(scope="module", params=["llama", "modernbert"])
def trained_family(request, trained, tmp_path_factory):
    """A run of each family."""
    if request.param == "llama":
        return trained
    return write_trained(tmp_path_factory.mktemp("modernbert"), MODEL_OPTIONS["modernbert"])


def texts(number):
    return [(text[:40], text[40:70]) for text in sample_documents(number)]


@pytest.mark.parametrize(
    ("name", "form", "expected"),
    [
        ("run/checkpoints/step-00000010", None, "causal"),
        ("run", None, "masked"),
        ("run", "causal", "causal"),
        ("run/checkpoints/step-00000010", "masked", "masked"),
        ("mntp", None, "masked"),
    ],
)
def test_a_checkpoint_is_scored_as_it_was_last_trained_or_as_is_asked(tmp_path, trained_family, name, form, expected):
    """Against the exported model of either form, on ids framed as documents were."""
    settings = get_task("pairs").Settings(form=form)
    model = trained_family.parent / name
    pairs = texts(3)
    file = write_pairs(tmp_path / "pairs.jsonl", pairs, UID="a")
    result = finetune("pairs", model, test=file, output=tmp_path / "out", settings=settings)
    assert (result.form, result.model, set(result.test)) == (expected, str(model), {"accuracy", "accuracy_a"})
    for exported in ("bidirectional", "causal"):
        to_hf(model, tmp_path / exported, form=exported)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bidirectional")
    assert tokenizer("a").input_ids[-1] == TINY_VOCABULARY.eos_id
    if expected == "causal":
        stock = AutoModelForCausalLM.from_pretrained(tmp_path / "causal").eval()
        check_scores(tmp_path / "out", tokenizer, pairs, lambda *row: slow_causal(stock, *row))
    else:
        stock, offset = AutoModelForMaskedLM.from_pretrained(tmp_path / "bidirectional").eval(), int(name == "mntp")
        check_scores(tmp_path / "out", tokenizer, pairs, lambda *row: slow_masked(stock, *row, 2, offset))


def test_an_encoder_exported_for_a_decoders_class_is_scored_in_both_forms(tmp_path, trained_family):
    family = family_of(settings_of(open_checkpoint(trained_family)))
    for name in ("encoder", "decoder"):
        kind = next(kind for kind, hub in family.types.items() if hub.is_encoder is (name == "encoder"))
        to_hf(trained_family, tmp_path / name, form="bidirectional", architecture=kind)
    file = write_pairs(tmp_path / "pairs.jsonl", texts(2))
    for form in ("masked", "causal"):
        settings = get_task("pairs").Settings(form=form)
        found = []
        for name in ("encoder", "decoder"):
            finetune("pairs", tmp_path / name, test=file, output=tmp_path / f"{name}-{form}", settings=settings)
            rows = (tmp_path / f"{name}-{form}" / "predictions.jsonl").read_text().splitlines()
            found.append([json.loads(row)["good"] for row in rows])
        assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_an_imported_model_is_scored_as_what_it_is(tmp_path, trained_family):
    file = write_pairs(tmp_path / "pairs.jsonl", texts(1))
    for form, expected in (("bidirectional", "masked"), ("causal", "causal")):
        to_hf(trained_family, tmp_path / form, form=form)
        from_hf(tmp_path / form, tmp_path / f"imported-{form}")
        result = finetune("pairs", tmp_path / f"imported-{form}", test=file, output=tmp_path / f"out-{form}")
        assert result.form == expected


def test_blimps_files_are_read_as_they_are(tmp_path, toolkit, trained):
    """A folder of paradigms; the one of BabyLM without `UID` is called as its file; one is `datasets`' Parquet."""
    folder = tmp_path / "blimp"
    folder.mkdir()
    (folder / "adjunct_island.jsonl").write_text(BLIMP)
    (folder / "README.md").write_text("BLiMP\n")
    (folder / "._adjunct_island.jsonl").write_text("{}\n")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints/adjunct_island-checkpoint.jsonl").write_text(BLIMP)
    Dataset.from_list([json.loads(AGREEMENT)]).to_parquet(folder / "train-00000-of-00001.parquet")
    write_pairs(folder / "hypernym.jsonl", [("He has a dog, so he has a pet.", "He has a pet, so he has a dog.")])
    code, out, err = toolkit("score", trained, "--pairs", folder, "--output", tmp_path / "out", "--threads", 1)
    assert code == 0, err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["task"], result["dataset"], result["form"], result["pairs"]) == ("pairs", "blimp", "masked", 4)
    assert (result["learning_rate"], result["steps"], result["majority"]) == (0.0, 0, 0.5)
    names = ["accuracy", "accuracy_adjunct_island", "accuracy_hypernym", "accuracy_anaphor_gender_agreement"]
    assert list(result["test"]) == names
    rows = read_lines(tmp_path / "out" / "predictions.jsonl")
    assert [row["UID"] for row in rows] == ["adjunct_island"] * 2 + ["hypernym", "anaphor_gender_agreement"]
    for name, score in result["test"].items():
        own = [row["is_correct"] for row in rows if name in ("accuracy", f"accuracy_{row['UID']}")]
        assert score == sum(own) / len(own)
    lines = [line.split() for line in out.splitlines()]
    assert ["adjunct_island", f"{result['test']['accuracy_adjunct_island']:.4f}"] in lines
    assert not (tmp_path / "out" / "model").exists()


def test_a_tie_is_wrong(tmp_path):
    model = save_encoder("bert", tmp_path / "model")
    file = write_pairs(tmp_path / "pairs.jsonl", [("w1 w2", "w1 w2")])
    assert finetune("pairs", model, test=file, output=tmp_path / "out").test["accuracy"] == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BLIMP + "{broken\n", r"pairs\.jsonl, line 3: not valid JSON"),
        (BLIMP + "[1]\n", r"pairs\.jsonl, row 3: expected a JSON object, got a list"),
        ("", r"pairs\.jsonl: no examples in this file"),
        (BLIMP + BLIMP, r"pairs\.jsonl, row 3: the same pair as in .*pairs\.jsonl, row 1\. Remove one"),
        ('{"sentence_good": "a", "UID": "b"}\n', r"row 1: .* in 'sentence_bad', found only 'sentence_good', 'UID'"),
        ('{"sentence_good": "a", "sentence_bad": 3}\n', r"row 1: .* with text in 'sentence_bad', found 3"),
        ('{"sentence_good": " ", "sentence_bad": "b"}\n', r"row 1: expected a string with text in 'sentence_good'"),
        ('{"sentence_good": "a", "sentence_bad": "b", "UID": 1}\n', r"row 1: .* in 'UID', found 1\. Correct or remove"),
        (json.dumps({"sentence_good": "w1 " * 50, "sentence_bad": "w1"}), r"'sentence_good' has 52 tokens, .*34"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_of_pairs_is_named_with_its_row(tmp_path, text, found):
    file = tmp_path / "pairs.jsonl"
    file.write_text(text)
    with pytest.raises(UserError, match=found):
        finetune("pairs", save_encoder("bert", tmp_path / "model"), test=file, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_forms_and_settings_that_a_model_does_not_have_are_refused(tmp_path, toolkit):
    bert, neo = save_encoder("bert", tmp_path / "bert"), save_decoder("gpt_neo", tmp_path / "neo")
    write_trained(tmp_path / "ultrabert", MODEL_OPTIONS["ultrabert"])
    by_clm = tmp_path / "ultrabert/run/checkpoints/step-00000010"
    # Nothing can stand in front of a sentence.
    edit_json(neo / "tokenizer_config.json", without=["eos_token"])
    words = ("--pairs", write_pairs(tmp_path / "p.jsonl"), "--output", tmp_path / "out")
    for model, form, found in (
        (bert, "causal", "(bert) has no causal form. Leave form out"),
        (by_clm, None, "(ultrabert) has no causal form. Choose form = 'masked'"),
        (neo, "masked", "(gpt_neo) has no masked form: it needs a mask token, and bidirectional attention"),
        (neo, None, "row 2: 'sentence_good' has no token to score"),
    ):
        code, _, err = toolkit("score", model, *words, *(() if form is None else ("--form", form)))
        assert (code, found in err) == (2, True), err
    with pytest.raises(ValueError, match=r"minimal pairs train nothing, so epochs, seed cannot be set\. Leave it out"):
        get_task("pairs").Settings(seed=1, epochs=2)


def test_a_grid_finds_a_model_without_a_head_before_anything_runs(tmp_path, trained, capsys):
    to_hf(trained, tmp_path / "headless", sentence_transformers=True)
    file, grid = write_pairs(tmp_path / "pairs.jsonl"), tmp_path / "grid.toml"
    models = "".join(
        f"[[model]]\nname = '{m}'\npath = '{p}'\n" for m, p in (("a", trained), ("b", tmp_path / "headless"))
    )
    task = f"[[task]]\nname = 'p'\nkind = 'pairs'\ntest = '{file}'\n"
    grid.write_text(f"[grid]\ndir = '{tmp_path / 'out'}'\nlearning_rates = [1e-3]\n{models}{task}")
    for begin in (show_grid, run_grid):
        with pytest.raises(UserError, match=r"headless has no head that predicts tokens"):
            begin(load_grid(grid))
    assert not (tmp_path / "out" / "cells").exists()
    grid.write_text(grid.read_text().replace(str(tmp_path / "headless"), str(trained)))
    show_grid(load_grid(grid))
    assert "a p (pairs): 0 of 1 done, runs\n" in capsys.readouterr().out


def test_a_grid_scores_checkpoints_and_decoders_without_rates_or_seeds(tmp_path, trained, monkeypatch, capsys):
    """Beside a task that is trained; the cell is what `toolkit score` gives alone, and is not run twice."""
    run_cells_here(monkeypatch)
    data, file = write_data(tmp_path / "data"), write_pairs(tmp_path / "pairs.jsonl", UID="a")
    gpt2 = save_decoder("llama", tmp_path / "llama")
    head = f"[grid]\ndir = '{tmp_path / 'out'}'\nsteps = 1\nthreads = 1\nseeds = [0, 1]\nkeep_models = 'all'\n"
    head += "learning_rates = [1e-3]\n"
    models = f"[[model]]\nname = 'run'\npath = '{trained}'\nsteps = 'all'\n"
    models += f"[[model]]\nname = 'llama'\npath = '{gpt2}'\n"
    pairs = f"[[task]]\nname = 'blimp'\nkind = 'pairs'\ntest = '{file}'\n"
    grid = tmp_path / "grid.toml"
    grid.write_text(head + models + pairs + f"[[task]]\nname = 'sc'\nkind = 'sc'\nbatch_rows = 4\n{data['sc']}\n")
    assert run_grid(load_grid(grid), num_workers=1) == 0
    assert "without keeping its model" not in capsys.readouterr().out
    scores = read_lines(tmp_path / "out" / "results.jsonl")
    assert [(row["model"], row["seed"], row["learning_rate"]) for row in scores if row["kind"] == "pairs"] == [
        ("llama", 0, 0.0), ("run@10", 0, 0.0), ("run@20", 0, 0.0),
    ]  # fmt: skip
    assert sum(row["kind"] == "sc" for row in scores) == 6
    cell = tmp_path / "out/cells/run@10/blimp/lr-0.0/seed-0"
    assert json.loads((cell / "result.json").read_text())["form"] == "causal"
    settings = get_task("pairs").Settings(threads=1)
    finetune("pairs", trained / "checkpoints/step-00000010", test=file, output=tmp_path / "alone", settings=settings)
    for name in ("result.json", "predictions.jsonl"):
        assert (cell / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    # The grid's own steps and rates are of training.
    grid.write_text(head.replace("steps = 1\n", "steps = 2\n") + models + pairs)
    assert run_grid(load_grid(grid), num_workers=1) == 0
    assert "3 cells, 3 done before" in capsys.readouterr().out
    write_report([tmp_path / "out"], output=tmp_path / "report")
    table = (tmp_path / "report/tables/scores.csv").read_text().splitlines()
    assert [line.split(",")[:6] for line in table[1:]] == [
        [model, "blimp", "pairs", "accuracy", "0.0", "1"] for model in ("llama", "run@10", "run@20")
    ]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("test = 'p'\nseeds = [1]\nlearning_rates = [1.0]\n", "trains nothing, so learning_rates, seeds cannot be set"),
        ("train = 'p'\ntest = 'p'\n", "'pairs' trains nothing, so train cannot be set"),
        ("", r"\[\[task\]\] t: test missing\. Give the file or folder of the pairs"),
        ("test = 'README.md'\nepochs = 2\n", "minimal pairs train nothing, so epochs cannot be set"),
    ],
)  # fmt: skip
def test_a_grid_refuses_what_is_of_training(tmp_path, lines, found):
    (tmp_path / "g.toml").write_text(
        f"[[model]]\nname = 'm'\npath = 'p'\n[[task]]\nname = 't'\nkind = 'pairs'\n{lines}"
    )
    with pytest.raises(SettingsError, match=found):
        run_grid(load_grid(tmp_path / "g.toml"))


def test_a_decoder_keeps_its_attention_unless_it_is_to_be_trained(tmp_path, capsys):
    """One that transformers could not give bidirectional attention can be scored, and in a grid of pairs alone."""
    source = open_source(str(save_decoder("gpt_neo", tmp_path / "m")), attention=None)
    assert getattr(source.config, "is_causal", True) is not False
    assert capsys.readouterr().out == ""
    data, grid = write_data(tmp_path / "data"), tmp_path / "grid.toml"
    grid.write_text(
        f"[grid]\ndir = '{tmp_path / 'out'}'\nlearning_rates = [1e-3]\n[[model]]\nname = 'm'\npath = '{source.model}'\n"
        f"[[task]]\nname = 'p'\nkind = 'pairs'\ntest = '{write_pairs(tmp_path / 'pairs.jsonl')}'\n"
    )
    plan = GridPlan(load_grid(grid))
    plan.check_models(plan.cells)
    grid.write_text(f"{grid.read_text()}[[task]]\nname = 'sc'\nkind = 'sc'\n{data['sc']}\n")
    plan = GridPlan(load_grid(grid))
    with pytest.raises(UserError, match=r"is a decoder .* and transformers cannot give it bidirectional attention"):
        plan.check_models(plan.cells)
