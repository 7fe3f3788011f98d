import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BartModel,
    LlamaConfig,
    ViTConfig,
)

from tests.support.hf_encoders import CLS, EOS, PAD, plain_tokenizer, save_encoder
from toolkit.conversion import from_hf
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning.encoder_source import longest_input, open_source
from toolkit.finetuning.heads import load_network
from toolkit.finetuning.sc.task import SequenceClassificationSettings
from toolkit.model_folder import read_config

TINY = {"vocab_size": 45, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
GPT_NEO = {
    "vocab_size": 45,
    "hidden_size": 8,
    "num_layers": 2,
    "attention_types": [[["global", "local"], 1]],
    "num_heads": 2,
}


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "modernbert-decoder"])
def test_a_decoder_is_made_to_look_ahead(tmp_path, kind, capsys):
    ids = {"pad_token_id": PAD, "bos_token_id": CLS, "eos_token_id": EOS}
    config = AutoConfig.for_model(kind, **TINY, **ids, num_key_value_heads=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    plain_tokenizer().save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    assert source.config.is_causal is False
    assert f"is a decoder ({kind}): it is fine-tuned with bidirectional attention" in capsys.readouterr().out
    network = load_network(AutoModel, source).eval()
    first = [network(torch.tensor([[1, 2, last]])).last_hidden_state[0, 0] for last in (3, 4)]
    assert not torch.equal(*first)


def test_a_decoder_that_cannot_look_ahead_is_refused(tmp_path):
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_neo", **GPT_NEO)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"is a decoder \(gpt_neo\), and transformers cannot give it bidirectional"):
        open_source(str(tmp_path))


def test_a_decoder_that_says_it_is_bidirectional_passes(tmp_path):
    LlamaConfig(**TINY, is_causal=False).save_pretrained(tmp_path)
    plain_tokenizer().save_pretrained(tmp_path)
    assert open_source(str(tmp_path)).config.model_type == "llama"


def test_a_model_without_the_files_of_its_tokenizer_is_refused(tmp_path):
    folder = save_encoder("bert", tmp_path / "bert")
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(UserError, match=r"bert has no tokenizer: all of its 5 tokens are special ones\. Put the files"):
        open_source(str(folder))


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    LlamaConfig(**TINY | {"vocab_size": 20}, is_causal=False).save_pretrained(tmp_path)
    plain_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has ids up to \d+, and the model embeds 20 tokens"):
        open_source(str(tmp_path))


def test_an_encoder_decoder_is_refused(tmp_path):
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    BartModel(BartConfig(vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1, **heads)).save_pretrained(
        tmp_path
    )
    with pytest.raises(UserError, match=r"is an encoder-decoder \(bart\)"):
        open_source(str(tmp_path))


def test_other_modalities_are_refused(tmp_path):
    ViTConfig().save_pretrained(tmp_path / "vit")
    with pytest.raises(UserError, match=r"vit"):
        open_source(str(tmp_path / "vit"))


def test_code_of_a_model_is_never_run(tmp_path, monkeypatch):
    """Nor is anybody asked about it, as transformers does."""
    folder = save_encoder("bert", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.MyConfig", "AutoModel": "mine.MyModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(UserError, match="it needs Python code that comes with it, and such code is not run here"):
        open_source(str(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('["bert"]', r"model holds no JSON object\. Download"),
        ("[]", r"model holds no JSON object\. Download"),
        ('{"model_type": []}', r"model has model_type=\[\], not a word\. Download"),
    ],
)
def test_a_configuration_that_is_none_is_said(tmp_path, content, message):
    folder = save_encoder("bert", tmp_path / "model")
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=message):
        open_source(str(folder))


@pytest.mark.parametrize("reader", [open_source, read_config, partial(from_hf, out="out")])
@pytest.mark.parametrize("has_code", [False, True])
def test_a_class_that_an_older_transformers_has_not_is_named(tmp_path, monkeypatch, reader, has_code):
    folder = save_encoder("ultrabert", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "mine.MyConfig"}} if has_code else {}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.delitem(CONFIG_MAPPING._mapping, "ultrabert")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"transformers 5\.\S+ does not know ultrabert.*\n.*pip install --upgrade"):
        reader(str(folder))


def test_damaged_weights_are_said(tmp_path):
    folder = save_encoder("bert", tmp_path / "model")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\nw1\ta\nw2\tb\n", "utf-8")
    with pytest.raises(UserError, match=r"could not load .*model as an encoder: "):
        finetune("sc", folder, train=rows, test=rows, output=tmp_path / "out")


def test_missing_weights_are_counted(tmp_path):
    folder = save_encoder("bert", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\nw1\ta\nw2\tb\n", "utf-8")
    settings = SequenceClassificationSettings(steps=1)
    with pytest.raises(UserError, match=r"1 weight of the encoder missing .*encoder\.layer\.1\.output\.dense\.weight"):
        finetune("sc", folder, train=rows, test=rows, output=tmp_path / "out", settings=settings)


@pytest.mark.parametrize(
    ("auto_class", "name"),
    [(AutoModelForSequenceClassification, "model.norm.weight"), (AutoModelForMaskedLM, "lm_head.weight")],
)
def test_weights_of_another_shape_are_said(tmp_path, auto_class, name):
    model = save_encoder("eurobert", tmp_path / "model")
    weights = load_file(model / "model.safetensors") | {name: torch.ones(9)}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=rf"{name} has the shape \(9,\), expected \(.*16,?\)\.\nGive a folder"):
        load_network(auto_class, open_source(str(model)))


@pytest.mark.parametrize("family", ["eurobert", "modernbert"])
def test_a_model_that_was_fine_tuned_gets_a_new_head_by_the_seed(tmp_path, family):
    """Of as many labels as before, or of others; the encoder and ModernBERT's pretrained `head` stay."""
    stored = tmp_path / "stored"

    def network(folder, labels, *, seed=0):
        torch.manual_seed(seed)
        return load_network(AutoModelForSequenceClassification, open_source(str(folder)), labels=labels)

    first = network(save_encoder(family, tmp_path / "model"), "abc")
    first.save_pretrained(stored)
    plain_tokenizer().save_pretrained(stored)
    before = first.state_dict()
    new = {name for name in before if not name.startswith(("model.", "head.")) and name.endswith(".weight")}
    assert new == {"classifier.weight", *(["dense.weight"] if family == "eurobert" else [])}
    for labels in ("def", "de"):
        one, same, other = (network(stored, labels, seed=seed).state_dict() for seed in (0, 0, 1))
        assert len(one["classifier.weight"]) == len(labels)
        for name, weight in one.items():
            assert torch.equal(weight, same[name])
            if not name.endswith(".bias"):
                assert torch.equal(weight, other[name]) is torch.equal(weight, before[name]) is (name not in new)


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("family", ["eurobert", "bert", "modernbert", "ultrabert"])
def test_what_a_wrapper_put_in_front_of_names_is_left_out_and_told(tmp_path, capsys, family, wrapper):
    folder = save_encoder(family, tmp_path / family)
    whole = {auto: load_network(auto, open_source(str(folder))) for auto in (AutoModel, AutoModelForMaskedLM)}
    weights = load_file(folder / "model.safetensors")
    wrapped = {f"{wrapper}{name}": tensor for name, tensor in weights.items()}
    save_file(wrapped, folder / "model.safetensors", metadata={"format": "pt"})
    for auto, network in whole.items():
        found = load_network(auto, open_source(str(folder))).state_dict()
        assert all(
            torch.equal(found[name], tensor) for name, tensor in network.state_dict().items() if "pooler" not in name
        )
        assert f"{wrapper} in front of the names of its weights is left out" in " ".join(
            capsys.readouterr().out.split()
        )


@pytest.mark.parametrize(("family", "longest"), [("eurobert", 34), ("bert", 34), ("roberta", 33), ("ultrabert", 34)])
def test_longest_input_leaves_out_positions_kept_for_padding(tmp_path, family, longest):
    from transformers import AutoModel, AutoTokenizer

    folder = save_encoder(family, tmp_path / family)
    encoder, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert longest_input(encoder, tokenizer) == longest
    ids = torch.full((1, longest), 7)
    assert encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.shape[1] == longest
    tokenizer.model_max_length = 12
    assert longest_input(encoder, tokenizer) == 12
