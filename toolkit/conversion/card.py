"""Model card of an export: model, data, training and how to load it, all from the manifest."""

import math
from collections.abc import Iterator
from importlib import metadata
from pathlib import PurePath
from typing import Any, Literal

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.conversion.forms import ExportForm, exported_pad_id
from toolkit.objectives.mlm import MaskedNextTokenPrediction
from toolkit.run.identity import last_kinds
from toolkit.run.old_branches import as_fork

_PIPELINE_TAG = {ExportForm.BIDIRECTIONAL: "fill-mask", ExportForm.CAUSAL: "text-generation"}
_ABOUT = {
    ExportForm.BIDIRECTIONAL: "A text encoder (bidirectional attention) with its masked-language-modeling head",
    ExportForm.CAUSAL: "A decoder (causal attention) with its next-token head",
}
_LOADING = {
    ExportForm.BIDIRECTIONAL: """\
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForMaskedLM.from_pretrained("{name}")
inputs = tokenizer(f"The cat sat on the {{tokenizer.mask_token}}.", return_tensors="pt")
logits = model(**inputs).logits
""",
    ExportForm.CAUSAL: """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForCausalLM.from_pretrained("{name}")
inputs = tokenizer("The cat sat on", return_tensors="pt")
tokens = model.generate(**inputs, max_new_tokens=20)
""",
}
_SHIFTED_ABOUT = (
    "A text encoder (bidirectional attention) with a head that predicts a masked token at the position before it"
)
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
_KEPT = {"keep": "kept", "reset": "new"}
_NOTES = {
    ExportForm.BIDIRECTIONAL: """\
Sentence embeddings: average `AutoModel`'s last hidden states over the attention mask. The head of
`AutoModelForSequenceClassification` pools the same way (`classifier_pooling: mean`); it has to be trained first.

transformers' class gives the embedding of the padding token (id {pad_id}) no gradient. The weight stored here was
trained like any other and is used as it is; only further training through that class leaves it where it stands.
""",
    ExportForm.CAUSAL: "",
}

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
_SINCE = {"ModernBertForMaskedLM": "4.48"}
"""Oldest transformers that computes the same, by class, where it is not 5.3."""


def model_card(
    manifest: CheckpointManifest,
    form: ExportForm,
    *,
    name: str,
    architecture: str,
    library: Literal["transformers", "sentence-transformers"] = "transformers",
    left_out: frozenset[str] = frozenset(),
) -> str:
    """The text of README.md; `name`, of the written folder, is its title.

    The folder does not have the parameters `left_out`: a head of its own, where it is for sentence-transformers.
    """
    manifest = manifest.model_copy(update={"settings": as_fork(manifest.settings)})
    is_shifted = has_shifted_head(manifest, form, left_out=left_out)
    has_own_class = form is ExportForm.CAUSAL or architecture.endswith("ForMaskedLM")
    tag = _PIPELINE_TAG[form] if has_own_class and not is_shifted else "feature-extraction"
    about = _SHIFTED_ABOUT if is_shifted else _ABOUT[form]
    base = manifest.origin.get("model", "")
    # Only an id of the hub says something to readers of the page.
    based_on = f"base_model: {base}\n" if "/" in base else ""
    loading = (
        _LOADING[form] if has_own_class else _LOADING[form].replace("AutoModelForMaskedLM", "AutoModelForCausalLM")
    )
    if is_shifted:
        loading = loading.replace(".logits\n", ".logits.roll(1, dims=1)  # each moved to the token it predicts\n")
    places = "the head loads through `AutoModelForCausalLM` and the encoder through `AutoModel`"
    if library == "sentence-transformers":
        tag, loading = "sentence-similarity", _EMBEDDING
    if left_out:
        about, places = f"{about.partition(' with ')[0]} without a head", "the encoder loads through `AutoModel`"
    front = f"---\nlibrary_name: {library}\npipeline_tag: {tag}\n{based_on}---\n"
    rows = "\n".join(f"| {key} | {value} |" for key, value in _facts(manifest))
    version = metadata.version("transformers")
    oldest = f">= {_SINCE.get(architecture, '5.3')}" if has_own_class else f"(checked with {version})"
    notes = _NOTES[form] if has_own_class else _CAUSAL_CLASS
    described = {
        "pad_id": exported_pad_id(manifest.vocabulary.vocabulary()),
        "version": version,
        "architecture": architecture,
        "name": name,
        "loading": places,
    }
    parts = [
        front,
        f"# {name}\n",
        f"{about}, as `{architecture}` of stock transformers {oldest}, without remote code.\n",
        f"## Use\n\n```python\n{loading.format(name=name)}```\n",
        _SHIFTED if is_shifted else "",
        notes.format(**described),
        "" if has_own_class or architecture not in _SERVED else _SERVERS.format(**described),
        f"## Training\n\n| | |\n|---|---|\n{rows}\n",
        f"Written by encoder-pretraining-toolkit {manifest.toolkit_version}.\n",
    ]
    return "\n".join(part for part in parts if part)


def has_shifted_head(manifest: CheckpointManifest, form: ExportForm, *, left_out: frozenset[str]) -> bool:
    """True where an encoder's head was trained last to predict a hidden token at the position before it."""
    is_read = form is ExportForm.BIDIRECTIONAL and not left_out
    return is_read and MaskedNextTokenPrediction.name in last_kinds(manifest)


def _facts(manifest: CheckpointManifest) -> Iterator[tuple[str, str]]:
    model = manifest.table("model")
    if manifest.first_weights:
        yield "first weights", manifest.first_weights
    if manifest.merged:
        yield "merged", "; ".join(f"step {parent.step:,} x {parent.weight:.4g}" for parent in manifest.merged)
    parameters = sum(math.prod(entry.shape) for entry in manifest.tensors.values())
    yield "parameters", f"{parameters:,}"
    yield "layers x width", f"{model.get('num_hidden_layers')} x {model.get('hidden_size')}"
    yield "vocabulary", f"{manifest.vocabulary.size:,} tokens, fingerprint `{manifest.vocabulary.fingerprint[:16]}`"
    if manifest.step or not manifest.origin:
        yield from _training(manifest)


def _training(manifest: CheckpointManifest) -> Iterator[tuple[str, str]]:
    """Facts of a run; an imported model that was not trained here has none of it."""
    data, train, rate = _group(manifest, "data"), _group(manifest, "train"), _group(manifest, "lr")
    total = train.get("steps")
    yield "updates", f"{manifest.step:,} of {total:,}" if isinstance(total, int) else f"{manifest.step:,}"
    yield "tokens seen", f"{manifest.tokens:,}"
    yield "schedule", ", then ".join(_phases(manifest))
    yield "data", _named(data.get("train"))
    yield "data digest", f"`{manifest.data_digest}`"
    yield "positions in a row", f"{data.get('sequence_length')} ({data.get('windows')})"
    yield "rows in a step", f"{train.get('global_batch_rows')}"
    yield "peak learning rate", f"{rate.get('peak')}"
    if init := _group(manifest, "init"):
        yield "optimizer at the start", _KEPT[init.get("optimizer", "reset")]
    yield "precision", str(manifest.settings.get("precision"))
    yield "seed", str(_group(manifest, "run").get("seed"))
    for key, loss in sorted(manifest.losses.items()):
        yield f"loss, {key}", f"{loss:.4f} nats per token"


def _named(value: Any) -> str:
    """A value of `[data]`; corpora by their names alone, without the paths of the machine that trained."""
    if isinstance(value, list | tuple):
        return ", ".join(_named(each["path"]) for each in value)
    return PurePath(value).name if isinstance(value, str) else str(value)


def _group(manifest: CheckpointManifest, key: str) -> dict[str, Any]:
    group = manifest.settings.get(key)
    return group if isinstance(group, dict) else {}


def _phases(manifest: CheckpointManifest) -> Iterator[str]:
    objectives = _group(manifest, "objectives")
    for phase in manifest.settings.get("schedule", ()):
        mix = phase.get("mix") or [{"objective": phase.get("objective")}]
        names = [str(entry.get("objective")) for entry in mix]
        length = [f"{phase[unit]} {unit}" for unit in ("steps", "tokens", "fraction") if phase.get(unit)]
        if len(mix) > 1:
            length += [f"share {_plain(entry['share'])} of {entry['objective']}" for entry in mix]
            length += [
                f"weight {weight} of {entry['objective']}"
                for entry in mix
                if (weight := entry.get("weight", 1.0)) != 1.0
            ]
        length += [
            f"{key} {phase[key]}"
            for key in ("global_batch_rows", "batch_warmup_rows", "batch_warmup_tokens", "lr_peak")
            if phase.get(key)
        ]
        length += [f"{key} {phase[key]}" for key in ("lr", "optimizer") if phase.get(key, "keep") != "keep"]
        length += [f"{key} {_named(value)}" for key, value in (phase.get("data") or {}).items()]
        length += [f"{key} {_plain(value)}" for key, value in (phase.get("model") or {}).items()]
        for name in names:
            of = f" of {name}" if len(mix) > 1 else ""
            length += [f"{key} {_plain(value)}{of}" for key, value in sorted((objectives.get(name) or {}).items())]
        yield f"{'+'.join(names)} ({', '.join(length)})"


def _plain(value: Any) -> str:
    """A setting's value; a table in brackets."""
    return f"({', '.join(f'{key} {part}' for key, part in value.items())})" if isinstance(value, dict) else str(value)
