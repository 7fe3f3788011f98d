"""Damaged tokenizer files of every kind, in a process of its own that a crash would end."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import tokenization
from tests.support.apart import run_apart
from tests.support.sources import ROOT
from tokenization.specs import shipped_spec

CONFIG = {
    "eos_token": "<|endoftext|>",
    "pad_token": {"content": "<|pad|>", "lstrip": False},
    "added_tokens_decoder": {"0": {"content": "<|endoftext|>"}},
    "additional_special_tokens": ["ing", "<x>"],
}


def kind(root: Path, name: str, files: dict[str, bytes], *, damage: str, load: str = "") -> None:
    folder = root / name
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    (folder / "DAMAGE").write_text(damage)
    (folder / "LOAD").write_text(load)


def word_pieces() -> bytes:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", ",", "1", "##2", "##3", "a"]
    backend = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.add_special_tokens(["[MASK]", "[SEP]"])
    return backend.to_str().encode()


@pytest.fixture
def kinds(trained, ranks_file, make_model, tmp_path):
    """A folder for every kind of file that can be damaged."""
    root = tmp_path / "kinds"
    root.mkdir()
    whole = (trained / "tokenizer.json").read_bytes()
    ranks = ranks_file.read_bytes()
    spec = shipped_spec("llama3")
    toml = (
        f"ranks = 'r'\npattern = '''{spec.pattern}'''\nbos = '<b>'\neos = '<e>'\nspecial_tokens = ['<b>', '<e>']\n"
        "[reserved]\ntext = '<r{}>'\nfirst_number = 5\ntotal = 256\n"
    )
    bpe = make_model(model_type="bpe", byte_fallback=True, normalization_rule_name="identity")
    unigram = make_model(model_type="unigram")
    tokenization.load(unigram).save(tmp_path / "unigram")
    tokenization.load(ranks_file).save(tmp_path / "ranks")
    model = json.loads(whole)["model"]
    pair = {
        "vocab.json": json.dumps(model["vocab"]).encode(),
        "merges.txt": "".join(f"{left} {right}\n" for left, right in model["merges"]).encode(),
    }
    named = {"tokenizer.json": whole, "tokenizer_config.json": json.dumps(CONFIG).encode()}
    kind(root, "tokenizer.json", {"tokenizer.json": whole}, damage="tokenizer.json")
    kind(root, "tokenizer_config.json", named, damage="tokenizer_config.json")
    mapped = {"tokenizer.json": whole, "special_tokens_map.json": json.dumps(CONFIG).encode()}
    kind(root, "special_tokens_map.json", mapped, damage="special_tokens_map.json")
    kind(root, "word pieces", {"tokenizer.json": word_pieces()}, damage="tokenizer.json")
    for name in ("unigram", "ranks"):
        content = (tmp_path / name / "tokenizer.json").read_bytes()
        kind(root, f"{name} saved", {"tokenizer.json": content}, damage="tokenizer.json")
    kind(root, "rank file", {"r": ranks}, damage="r", load="r")
    kind(root, "spec", {"r": ranks, "s.toml": toml.encode()}, damage="s.toml", load="s.toml")
    kind(root, "model bpe", {"m": bpe.read_bytes()}, damage="m", load="m")
    kind(root, "model unigram", {"m": unigram.read_bytes()}, damage="m", load="m")
    kind(root, "vocab.json", pair, damage="vocab.json")
    kind(root, "merges.txt", pair, damage="merges.txt")
    return root


def run(folder: Path, *, seed: int, count: int, timeout: int) -> str:
    words, environment = (
        ("-m", "tests.tokenization.damage", folder, seed, count),
        {**os.environ, "RAYON_NUM_THREADS": "1"},
    )
    finished = run_apart(*words, folder=ROOT, environment=environment, seconds=timeout)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    # A panic that is caught still prints its own story.
    assert "panicked" not in finished.stderr, finished.stderr[:2000]
    return finished.stdout


def test_damaged_files_are_read_or_refused_in_words(kinds):
    lines = run(kinds, seed=1, count=40, timeout=300).splitlines()

    assert [line for line in lines if "were read all the same" not in line] == []
    assert len(lines) == len(list(kinds.iterdir())) == 12


@pytest.mark.long
def test_a_thousand_damaged_files_of_each_kind(kinds):
    lines = run(kinds, seed=2, count=1000, timeout=1200).splitlines()

    assert [line for line in lines if "were read all the same" not in line] == []
    shutil.rmtree(kinds)
