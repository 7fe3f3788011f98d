"""(Pseudo-)log-likelihoods of sentences under a language model, causal or masked.

Shapes: B sentences or masked copies of them, S positions, N scored tokens, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from toolkit.checkpoint.manifest import MANIFEST_NAME, CheckpointManifest, read_manifest
from toolkit.core.console import progress
from toolkit.core.errors import SettingsError
from toolkit.core.types import AttentionKind
from toolkit.engine.gpus import has_gpu
from toolkit.finetuning.encoder_source import EncoderSource, is_decoder, looks_ahead
from toolkit.finetuning.heads import load_network
from toolkit.finetuning.settings import Form
from toolkit.finetuning.trainer import Features
from toolkit.model.families import HUB_TYPES, HubType, hub_type
from toolkit.objectives import get
from toolkit.run.identity import last_kinds

_MOST_ON_CPU, _MOST_ON_GPU = (2**11, 2**22), (2**15, 2**28)
"""Maximum tokens and logits of a forward pass; on one core, more were slower."""


def choose_form(source: EncoderSource, asked: Form | None) -> tuple[Form, int]:
    """The form to score a model in, and how many positions before a token its head predicts it.

    Raises:
        SettingsError: the model does not have the form.
    """
    config, is_generator = source.config, is_decoder(source.config)
    is_causal, offset = is_generator and getattr(config, "is_causal", True) is not False, 0
    if (manifest := _manifest_of(source)) is not None:
        kinds = [get(kind) for kind in last_kinds(manifest)]
        origin = manifest.origin.get("family", "eurobert")
        is_imported_decoder = not manifest.step and not hub_type(origin).is_encoder
        is_causal = all(kind.attention is AttentionKind.CAUSAL for kind in kinds) if kinds else is_imported_decoder
        offset = max((getattr(kind, "label_offset", 0) for kind in kinds), default=0)
    form: Form = asked or ("causal" if is_causal else "masked")
    if form == "causal":
        if not (is_generator or (config.model_type in HUB_TYPES and HUB_TYPES[config.model_type].decoder)):
            remedy = "Leave form out." if asked and not is_causal else "Choose form = 'masked'."
            raise SettingsError(f"{source.model} ({config.model_type}) has no causal form. {remedy}")
        return form, 1
    if source.tokenizer.mask_token_id is None or (is_generator and not looks_ahead(config)):
        raise SettingsError(
            f"{source.model} ({config.model_type}) has no masked form: it needs a mask token, and bidirectional "
            "attention, which transformers does not give to every decoder. Choose form = 'causal'."
        )
    return form, offset


def token_in_front(source: EncoderSource, form: Form) -> int | None:
    """Id to prepend to a sentence so that its first token is scored too; None if not needed, or not used in training.

    It is the beginning-of-text token, else end-of-text, as in EleutherAI's lm-evaluation-harness. Models trained here
    are scored as they were trained.
    """
    tokenizer, manifest = source.tokenizer, _manifest_of(source)
    has_one = tokenizer("a", return_special_tokens_mask=True).special_tokens_mask[:1] == [1]
    if form == "masked" or has_one or (manifest is not None and manifest.step):
        return None
    found: int | None = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return found


def _manifest_of(source: EncoderSource) -> CheckpointManifest | None:
    is_own = source.origin is not None and (source.origin / MANIFEST_NAME).is_file()
    return read_manifest(source.origin) if source.origin is not None and is_own else None


def load_with_head(source: EncoderSource, form: Form, *, device: str | None = None) -> PreTrainedModel:
    """The model in its own class, in fp32, checked for missing weights; on the device `meta` without reading any."""
    if is_decoder(source.config):
        return load_network(AutoModelForCausalLM, source, device=device, is_causal=form == "causal", use_cache=False)
    return load_network(AutoModelForMaskedLM, source, device=device)


def load_language_model(source: EncoderSource, form: Form) -> PreTrainedModel:
    """The model with its head, in fp32; for `causal`, our families' encoders are loaded into the family's decoder."""
    encoder = load_with_head(source, form)
    if form == "masked" or is_decoder(source.config):
        return encoder
    config, own = source.config.to_dict(), source.config.model_type
    family = HUB_TYPES[own]
    other = family.decoder
    assert other is not None
    ids = {key: config[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    ids = {key: each[0] if isinstance(each, list) else each for key, each in ids.items()}
    config |= family.special_ids(ids, other) | {"use_cache": False}
    decoder: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        AutoConfig.for_model(other).from_dict(config), dtype=torch.float32
    )
    decoder.load_state_dict(dict(_renamed(encoder.state_dict(), hub_type(own), hub_type(other))))
    return decoder


def _renamed(tensors: Mapping[str, torch.Tensor], hub: HubType, other: HubType) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a class under the names of another class of its family, which may split a tensor into parts."""
    names: dict[str, dict[str, None]] = {}
    for ours, theirs in hub.names.items():
        names.setdefault(theirs, {})[other.names[ours]] = None
    for name, tensor in tensors.items():
        module = next((each for each in names if f".{each}." in f".{name}"), "")
        parts = names.get(module, [""])
        for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
            yield name.replace(module, part), rows


@torch.inference_mode()
def log_likelihoods(
    network: Any, inputs: Features, *, mask_id: int | None, pad_id: int, offset: int
) -> list[npt.NDArray[Any]]:
    """Sum of the log-probabilities of the tokens at the `targets` of each input, (1,).

    A token is predicted `offset` positions before its own. Without a mask id, by the chain rule; with one, each token
    is masked by itself (Salazar et al. 2020, "Masked Language Model Scoring", section 2).
    """
    network.eval().to("cuda" if has_gpu() else "cpu")
    copies = [
        (number, targets)
        for number, row in enumerate(inputs)
        for targets in ([row["targets"]] if mask_id is None else [[target] for target in row["targets"]])
    ]
    # Longest first: it sets the width of a batch, and shows whether memory suffices for one.
    copies.sort(key=lambda copy: -len(inputs[copy[0]]["input_ids"]))
    most_tokens, most_logits = _MOST_ON_GPU if has_gpu() else _MOST_ON_CPU
    totals, start = np.zeros((len(inputs), 1)), 0
    with progress("scoring", total=len(copies), unit="inputs") as bar:
        while start < len(copies):
            number, targets = copies[start]
            most_rows = min(
                most_tokens // len(inputs[number]["input_ids"]),
                most_logits // (len(targets) * network.config.vocab_size),
            )
            chosen = copies[start : start + max(1, most_rows)]
            rows = [torch.tensor(inputs[number]["input_ids"]) for number, _ in chosen]
            scores_N = _target_scores(network, rows, [targets for _, targets in chosen], mask_id, pad_id, offset)
            owners_N = [number for number, targets in chosen for _ in targets]
            np.add.at(totals[:, 0], owners_N, scores_N.double().cpu().numpy())
            start += len(chosen)
            bar.update(start)
    return list(totals)


def _target_scores(
    network: Any,
    rows: list[torch.Tensor],
    targets: Sequence[list[int]],
    mask_id: int | None,
    pad_id: int,
    offset: int,
) -> torch.Tensor:
    """Log-probability of each target, (N,); the head is computed only at the positions that predict them."""
    ids_BS = pad_sequence(rows, batch_first=True, padding_value=pad_id)
    is_real_BS = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    row_N = torch.repeat_interleave(torch.tensor([len(own) for own in targets]))
    column_N = torch.tensor([target for own in targets for target in own])
    labels_N = ids_BS[row_N, column_N]
    if mask_id is not None:
        ids_BS[row_N, column_N] = mask_id
    column_N -= offset
    hook = network.get_output_embeddings().register_forward_pre_hook(lambda _, given: (given[0][row_N, column_N],))
    try:
        outputs = network(input_ids=ids_BS.to(network.device), attention_mask=is_real_BS.to(network.device))
    finally:
        hook.remove()
    scores_NV: torch.Tensor = outputs.logits.float().log_softmax(dim=-1)
    return scores_NV.gather(1, labels_N.to(network.device)[:, None])[:, 0]
