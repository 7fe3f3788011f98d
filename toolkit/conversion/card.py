"""Model card of an export: what it is, how to load it and how it was trained, all from the manifest."""

import math
from collections.abc import Iterator
from importlib import metadata
from pathlib import PurePath
from typing import Any

import tomli_w

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.conversion.forms import ExportForm, exported_pad_id
from toolkit.model_folder import Library, card, table
from toolkit.objectives.mlm import MaskedNextTokenPrediction
from toolkit.run.identity import last_kinds

_MASKED_HEAD, _CAUSAL_HEAD = "its masked-language-modeling head", "its next-token head"
_SHIFTED_HEAD = "a head that predicts a masked token at the position before it"
_LOADING = """\
from transformers import {loader}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {loader}.from_pretrained("{name}")
"""
_MASKED = """\
inputs = tokenizer(f"The cat sat on the {tokenizer.mask_token}.", return_tensors="pt")
logits = model(**inputs).logits"""
_CAUSAL = """\
inputs = tokenizer("The cat sat on", return_tensors="pt")
tokens = model.generate(**inputs, max_new_tokens=20)
"""
_SHIFTED = """\
The head was trained last by masked next-token prediction (`mntp`): its logits at a position are those of the token
after it, and the first token of a text has none. The `fill-mask` pipeline reads the mask's own position, and would
predict the token after the mask.
"""
_EMBEDDING = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
embeddings = model.encode(["The cat sat on the mat.", "A dog lay in front of the fire."])
"""
_ENCODER = """\
Sentence embeddings: average `AutoModel`'s last hidden states over the attention mask.

transformers' class gives the embedding of the padding token (id {pad_id}) no gradient; the weight stored here was
trained like any other.
"""
_CAUSAL_CLASS = """\
`{architecture}` is the class of a decoder, so {loading}; attention is
bidirectional all the same, since config.json says `is_causal: false`. transformers honours that from 5.2 on, and it was
checked with transformers {version}; an older one may read over it and attend to the left only. The `fill-mask` pipeline
does not take such a class. Sentence embeddings: average `AutoModel`'s last hidden states over the attention mask.
"""
_SERVED = ("LlamaForCausalLM", "Qwen3ForCausalLM")
_SERVERS = """\
Servers that know `{architecture}` take the folder as an embedding model. By their sources (not run here), vLLM switches
to bidirectional attention by the same key, and so does llama.cpp's `convert_hf_to_gguf.py` since pull request 20746:

```bash
vllm serve {name} --runner pooling --convert embed --pooler-config '{{"pooling_type": "MEAN"}}'
python convert_hf_to_gguf.py {name} --outfile {name}.gguf && llama-server -m {name}.gguf --embedding --pooling mean
```

Compare a few embeddings with transformers' before you rely on a server.
"""
_SINCE = {"ModernBertForMaskedLM": "4.48", "UltrabertForMaskedLM": "5.20"}
"""Oldest transformers version that computes the same, by class, if it is not 5.3."""
_RECIPE = ("schedule", "objectives", "data", "lr", "train")


def model_card(
    manifest: CheckpointManifest,
    form: ExportForm,
    *,
    name: str,
    architecture: str,
    library: Library = "transformers",
    left_out: frozenset[str] = frozenset(),
) -> str:
    """Text of README.md; its title is `name`, that of the written folder.

    `left_out` are parameters that the folder does not have: the head's own, if it is for sentence-transformers.
    """
    is_causal, is_shifted = form is ExportForm.CAUSAL, has_shifted_head(manifest, form, left_out=left_out)
    has_own_class = is_causal or architecture.endswith("ForMaskedLM")
    pipeline = ("text-generation" if is_causal else "fill-mask") if has_own_class else "feature-extraction"
    loader = "AutoModelForMaskedLM" if has_own_class and not is_causal else "AutoModelForCausalLM"
    code = _LOADING.format(loader=loader, name=name) + (_CAUSAL if is_causal else f"{_MASKED}\n")
    if is_shifted:
        pipeline, code = "feature-extraction", f"{code[:-1]}.roll(1, dims=1)  # each moved to the token it predicts\n"
    if library == "sentence-transformers":
        pipeline, code = "sentence-similarity", _EMBEDDING.format(name=name)
    kind = "A decoder (causal attention)" if is_causal else "A text encoder (bidirectional attention)"
    head = _CAUSAL_HEAD if is_causal else _SHIFTED_HEAD if is_shifted else _MASKED_HEAD
    version = metadata.version("transformers")
    described = {
        "pad_id": exported_pad_id(manifest.vocabulary),
        "version": version,
        "architecture": architecture,
        "name": name,
        "loading": "the encoder loads through `AutoModel`"
        if left_out
        else "the head loads through `AutoModelForCausalLM` and the encoder through `AutoModel`",
    }
    since = f">= {_SINCE.get(architecture, '5.3')}" if has_own_class else f"(checked with {version})"
    notes = "" if is_causal else _ENCODER if has_own_class else _CAUSAL_CLASS
    return card(
        [
            f"{kind} {'without a head' if left_out else f'with {head}'}, as `{architecture}` of stock transformers "
            f"{since}, without remote code.\n",
            f"## Use\n\n```python\n{code}```\n",
            _SHIFTED if is_shifted else "",
            notes.format(**described),
            "" if has_own_class or architecture not in _SERVED else _SERVERS.format(**described),
            f"## Training\n\n{table(_facts(manifest), head=('', ''))}",
            "" if _is_untrained(manifest) else f"As in its run file:\n\n```toml\n{_recipe(manifest)}```\n",
        ],
        title=name,
        library=library,
        pipeline=pipeline,
        base=manifest.origin.get("model"),
        facts=manifest.origin,
    )


def has_shifted_head(manifest: CheckpointManifest, form: ExportForm, *, left_out: frozenset[str]) -> bool:
    """True if an encoder's head was last trained to predict a masked token at the position before it."""
    is_read = form is ExportForm.BIDIRECTIONAL and not left_out
    return is_read and MaskedNextTokenPrediction.name in last_kinds(manifest)


def _is_untrained(manifest: CheckpointManifest) -> bool:
    """True if it is an imported model that was not trained here."""
    return bool(manifest.origin and not manifest.step)


def _facts(manifest: CheckpointManifest) -> Iterator[tuple[str, str]]:
    model = manifest.table("model")
    if manifest.first_weights:
        yield "first weights", manifest.first_weights
    if manifest.merged:
        yield "merged", "; ".join(f"step {parent.step:,} x {parent.weight:.4g}" for parent in manifest.merged)
    yield "parameters", f"{sum(math.prod(entry.shape) for entry in manifest.tensors.values()):,}"
    yield "layers x width", f"{model.get('num_hidden_layers')} x {model.get('hidden_size')}"
    yield "vocabulary", f"{manifest.vocabulary.size:,} tokens"
    if _is_untrained(manifest):
        return
    total = manifest.table("train").get("steps")
    yield "updates", f"{manifest.step:,} of {total:,}" if isinstance(total, int) else f"{manifest.step:,}"
    yield "tokens seen", f"{manifest.tokens:,}"
    yield "digest of the rows", f"`{manifest.data_digest}`"
    for key, loss in sorted(manifest.losses.items()):
        yield f"loss, {key}", f"{loss:.4f} nats per token"


def _recipe(manifest: CheckpointManifest) -> str:
    """Settings that made the model, with only the objectives that its schedule names."""
    settings, entries = manifest.settings, manifest.settings.get("schedule", ())
    used = {part["objective"] for entry in entries for part in entry.get("mix") or [entry]}
    chosen = {key: settings[key] for key in _RECIPE if settings.get(key)}
    chosen["objectives"] = {name: table for name, table in manifest.table("objectives").items() if name in used}
    return tomli_w.dumps({"run": {"seed": manifest.table("run").get("seed", 0)}} | _portable(chosen))


def _portable(value: Any) -> Any:
    """Settings without None values, and with corpora by name instead of path on this machine."""
    if isinstance(value, dict):
        return {key: _portable(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_portable(part) for part in value]
    return PurePath(value).name if isinstance(value, str) else value
