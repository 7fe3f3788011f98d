"""Model folders for other tools: configuration, tokenizer, sentence-transformers' modules and model card.

The only writer of exports and of fine-tuned models. All formats are readable by transformers 4 and
sentence-transformers 2; the newest libraries write formats that those refuse or misread.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import toolkit
from toolkit.core.errors import UserError
from toolkit.model.families import HUB_TYPES

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

Library = Literal["transformers", "sentence-transformers"]
CONFIG_FILE, CARD_FILE = "config.json", "README.md"
_TOKENIZER, _TOKENIZER_CONFIG, _POOLING = "tokenizer.json", "tokenizer_config.json", "1_Pooling"
_LIBRARY = "sentence_transformers.models"
_NEW_KINDS = ("pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken")
_KINDS_OF_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    **dict(zip(_NEW_KINDS, ("weightedmean", "lasttoken"), strict=True)),
}
"""Pooling modes by key; older readers do not know the new keys."""
_REMEDY = "Download the model again, or repair the file."
_PAPER_TYPE = "sl_model"
_PAPER_DEFAULTS = {"rope_theta": 250_000.0, "classifier_pooling": "mean"}
"""Defaults of the paper's models that differ from EuroBERT's."""


def as_native(config: dict[str, Any]) -> dict[str, Any]:
    """Content of `config.json` for a class of transformers: the models of arXiv 2507.00994 as EuroBERT.

    They are EuroBERTs under other class names, in code that comes with the model and is not run. `is_causal` says
    how a model was trained; its authors fine-tune all of them with bidirectional attention, like EuroBERT's class.
    """
    if config.get("model_type") != _PAPER_TYPE:
        return config
    kept = {key: value for key, value in config.items() if key not in ("auto_map", "is_causal", "retrieval_pooling")}
    return _PAPER_DEFAULTS | kept | {"model_type": "eurobert"}


def read_config(model: Path | str, **options: Any) -> "PreTrainedConfig":
    """The transformers configuration of a folder, or of a model on the hub; code that comes with it is not run.

    Raise what transformers raises, and `UserError` if the file has no JSON object, or if its `model_type` is not a
    string, or is one of ours that this transformers version does not know; `options` are those of `from_pretrained`.
    """
    from transformers import AutoConfig, PreTrainedConfig

    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(model, trust_remote_code=False, **options)
        return config
    except (AttributeError, TypeError, ValueError) as error:
        raw: Any = None
        with suppress(AttributeError, TypeError):
            raw, _ = PreTrainedConfig.get_config_dict(model, **options)
        if not isinstance(raw, dict):
            raise UserError(f"config.json of {model} holds no JSON object. {_REMEDY}") from error
        model_type = as_native(raw).get("model_type")
        if not isinstance(model_type, str | None):
            raise UserError(f"config.json of {model} has model_type={model_type!r}, not a word. {_REMEDY}") from error
        if model_type in HUB_TYPES:
            check_is_known(model_type, f"the class of {model}")
        if (native := as_native(raw)) is raw:
            raise
        return type(AutoConfig.for_model(native["model_type"])).from_dict(native)


def check_is_known(model_type: str, what: str) -> None:
    """Raise `UserError` if the installed transformers is too old for one of our classes; `what` describes it."""
    from transformers import CONFIG_MAPPING, __version__

    if model_type not in CONFIG_MAPPING:
        raise UserError(
            f"transformers {__version__} does not know {model_type}, {what}.\n"
            "Update it: pip install --upgrade transformers."
        )


def add_old_keys(folder: Path) -> None:
    """Add keys to `config.json` that transformers 4 expects, and 5 has under other names, such as the RoPE bases."""
    config = read_json(folder / CONFIG_FILE)
    angles, layers = config.get("rope_parameters") or {}, config.get("layer_types") or []
    old: dict[str, Any] = {}
    if "full_attention" in angles and str(config.get("model_type")).startswith("modernbert"):
        globals_ = (number for number, kind in enumerate(layers) if number and kind == "full_attention")
        old["global_attn_every_n_layers"] = next(globals_, len(layers))
        old["global_rope_theta"] = angles["full_attention"]["rope_theta"]
        if "sliding_attention" in angles:
            old["local_rope_theta"] = angles["sliding_attention"]["rope_theta"]
    elif "rope_theta" in angles:
        old["rope_theta"] = angles["rope_theta"]
        if angles.get("rope_type", "default") != "default":
            old["rope_scaling"] = {key: value for key, value in angles.items() if key != "rope_theta"}
    if old:
        write_json(folder / CONFIG_FILE, config | old)


def write_tokenizer(
    folder: Path, content: dict[str, Any], *, config: Mapping[str, Any], longest: int, inputs: Sequence[str]
) -> None:
    """Write a tokenizer under the one class that all readers accept, and that changes nothing in `tokenizer.json`.

    Args:
        folder: destination of `tokenizer.json` and `tokenizer_config.json`.
        content: of `tokenizer.json`.
        config: names of the special tokens, `ROLE_token` and `additional_special_tokens`; other keys are kept.
        longest: number of tokens of the model's longest input.
        inputs: names of the model's inputs, such as `attention_mask`.
    """
    config = dict(config)
    if isinstance(extra := config.pop("extra_special_tokens", None), list):
        # transformers 4 does not accept a list under this name.
        config["additional_special_tokens"] = extra
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
        "model_input_names": list(inputs),
    }
    # The last truncation and padding are not part of a tokenizer, but other readers of the file would apply them.
    write_json(folder / _TOKENIZER, content | {"truncation": None, "padding": None})
    write_json(folder / _TOKENIZER_CONFIG, config)


def save_tokenizer(folder: Path, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Write a tokenizer loaded by transformers, from its `tokenizer.json`; one without it is saved by its own class."""
    if not tokenizer.is_fast:
        tokenizer.save_pretrained(folder)
        return
    roles = {key: str(token) for key, token in tokenizer.special_tokens_map.items() if not isinstance(token, list)}
    extra = [token for token in tokenizer.all_special_tokens if token not in roles.values()]
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        # A batch could not be padded otherwise; the attention mask hides the token, whichever it is.
        roles["pad_token"] = str(tokenizer.eos_token)
    side = {} if tokenizer.truncation_side == "right" else {"truncation_side": tokenizer.truncation_side}
    write_tokenizer(
        folder,
        json.loads(tokenizer.backend_tokenizer.to_str()),
        config=roles | side | ({"additional_special_tokens": extra} if extra else {}),
        longest=tokenizer.model_max_length,
        inputs=tokenizer.model_input_names,
    )


@dataclass(frozen=True)
class Modules:
    """Preprocessing of texts and pooling of an encoder's hidden states in sentence-transformers.

    Attributes:
        pooling: modes, by the library's names; the vectors of several modes are concatenated.
        pools_prompt: whether the tokens of a prompt are pooled too.
        is_normalized: whether vectors have length 1.
        lowers_case: whether texts are lower-cased first.
        longest: maximum number of tokens of a text.
        prompts: prefixes of texts, by name.
        default_prompt: name of the prompt of texts that are neither queries nor documents.
    """

    longest: int
    pooling: tuple[str, ...] = ("mean",)
    pools_prompt: bool = True
    is_normalized: bool = False
    lowers_case: bool = False
    prompts: Mapping[str, str | None] = field(default_factory=dict)
    default_prompt: str | None = None


def write_modules(folder: Path, modules: Modules, *, width: int) -> None:
    """Write the files of sentence-transformers for an encoder; vectors are compared by cosine similarity."""
    names = [("", "Transformer"), (_POOLING, "Pooling"), *([("2_Normalize", "Normalize")] * modules.is_normalized)]
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_LIBRARY}.{name}"}
        for index, (path, name) in enumerate(names)
    ]
    whole = {
        "prompts": dict(modules.prompts),
        "default_prompt_name": modules.default_prompt,
        "similarity_fn_name": "cosine",
    }
    # Spelled out: readers that do not know the short `pooling_mode` silently take their own default.
    kinds = {key: kind in modules.pooling for key, kind in _KINDS_OF_POOLING.items()}
    pooling = {
        "word_embedding_dimension": width,
        **{key: is_used for key, is_used in kinds.items() if is_used or key not in _NEW_KINDS},
        "include_prompt": modules.pools_prompt,
    }
    for path, _ in names[1:]:
        (folder / path).mkdir()
    write_json(folder / "modules.json", listed)
    longest = {"max_seq_length": modules.longest, "do_lower_case": modules.lowers_case}
    write_json(folder / "sentence_bert_config.json", longest)
    write_json(folder / "config_sentence_transformers.json", whole)
    write_json(folder / _POOLING / CONFIG_FILE, pooling)


def card(
    paragraphs: Iterable[str],
    *,
    title: str,
    library: Library,
    pipeline: str,
    base: str | None,
    facts: Mapping[str, str],
) -> str:
    """Text of a model card: a title and paragraphs below the metadata that the hub reads.

    `base` is the model that this one was made from, named if it is a hub id; `facts` are those of its card that still
    hold (`card_facts`).
    """
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name=library,
        pipeline_tag=pipeline,
        base_model=base if base is not None and base.count("/") == 1 and not Path(base).exists() else None,
        tags=["encoder-pretraining-toolkit", *([library] if library == "sentence-transformers" else [])],
        language=facts["language"].split() if "language" in facts else None,
        license=facts.get("license"),
    )
    made = f"Written by encoder-pretraining-toolkit {toolkit.__version__}.\n"
    text = "\n".join(part for part in (f"# {title}\n", *paragraphs, made) if part)
    return f"---\n{data.to_yaml()}\n---\n\n{text}"


def card_facts(model: str | Path) -> dict[str, str]:
    """Facts of a folder's or hub model's card that hold for derived models: `license`, `language` (space-separated)."""
    from huggingface_hub import ModelCard

    facts = {}
    # A third-party card may contain anything, and must not make the model unusable.
    with suppress(Exception):
        place = Path(model) / CARD_FILE if Path(model).is_dir() else model
        data = ModelCard.load(place, ignore_metadata_errors=True).data.to_dict()
        for key in ("language", "license"):
            values = data[key] if isinstance(data.get(key), list) else [data.get(key)]
            if values and all(isinstance(value, str) for value in values):
                facts[key] = " ".join(values)
    return facts


def table(rows: Iterable[Sequence[object]], *, head: Sequence[str]) -> str:
    """Markdown table of a model card."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def check_not_adapter(folder: Path) -> None:
    """Raise `UserError` for a PEFT adapter, which is a model only together with the one that it was trained on."""
    path = folder / "adapter_config.json"
    if path.is_file() and not any(folder.glob("model*.safetensors")):
        base = read_json(path).get("base_model_name_or_path") or "its base model"
        raise UserError(
            f"{folder} is a PEFT adapter of {base} (adapter_config.json), not a whole model.\nMerge it first: "
            f"PeftModel.from_pretrained(BASE, {str(folder)!r}).merge_and_unload().save_pretrained(FOLDER), with BASE "
            "loaded in transformers; save its tokenizer there too, and give that folder."
        )


def wrapper_prefix(names: Collection[str], expected: Iterable[str], *, of_class: str) -> str:
    """Prefix that a wrapper put in front of all tensor names, such as `_orig_mod.` or `module.`; usually empty.

    Names are `expected` with or without the class's own prefix, `of_class`: a folder of the bare class has none.
    """
    known, first = {name.removeprefix(of_class) for name in expected}, min(names, default="")
    prefixes = ["", *(first[: place + 1] for place, sign in enumerate(first) if sign == ".")]

    def num_known(prefix: str) -> int:
        return sum(name.removeprefix(prefix).removeprefix(of_class) in known for name in names)

    return max(prefixes, key=num_known)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file, indented."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file; empty if it is missing."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content
