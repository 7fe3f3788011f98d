"""Parity check: the logits of a Hugging Face folder against those of the checkpoint.

The folder is loaded the way its users load it, through the Auto classes without remote code, and its logits are
compared in fp32 with those of our own encoder, which takes its weights from the checkpoint and not from the folder.
One text is run alone, and six as a padded batch; our model gets all of them packed in one row.

Neither model is ever whole in memory: both are built without weights, and each module gets its own just before it
runs and drops them afterwards. So a check needs memory for the largest tensor, not for two models.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.checkpoint.read import Checkpoint
from toolkit.conversion.weights import USE_WHOLE, HubWeights, shapes_of
from toolkit.core.console import quiet_transformers
from toolkit.core.errors import CheckpointError, ToolkitError, UserError
from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder
from toolkit.model.families import hub_type
from toolkit.model.layers import linear
from toolkit.model.parameters import EMBEDDING, HEAD, HEAD_BIAS
from toolkit.model_folder import read_config

_TOLERANCE = 2e-5
# Our logits differed from theirs at most 2.5 times as much as theirs in fp32 from theirs in fp64, over random models
# with rounding errors of four orders of magnitude; a wrong tensor or angle changes logits by a large fraction.
_TIMES_ROUNDING, _LARGEST_PART = 8, 0.01
# They bound the check's own memory, which is for logits of a large vocabulary.
_MOST_TOKENS = 160
_MOST_TOKENS_IN_A_BATCH = 32
_ROWS = 32

SENTENCES = (
    "Call me Ishmael.",
    "It was the best of times, it was the worst of times.",
    "The cat sat on the mat, and the dog lay in front of the fire.",
    "In 1859 Charles Darwin published a book of 502 pages; all 1,250 copies went to the booksellers on the first day.",
    "All happy families are alike; every unhappy family is unhappy in its own way. Everything was in confusion in the "
    "house: the wife had found out that the husband was carrying on with a French girl, who had been a governess in "
    "their family, and she had told her husband that she could not go on living in the same house with him.",
    "Water boils at 100 degrees at sea level, and at about 70 degrees on the highest mountains. The reason is that air "
    "presses less there: a liquid boils when its vapour presses as hard as the air around it. Cooks in the mountains "
    "know this without any physics, for beans that are done in an hour by the sea take two or three up there. A pot "
    "with a tight lid undoes the difference, because the steam that cannot leave presses on the water, so that it "
    "becomes hotter before it boils. Such pots were first shown to learned men in London, who ate what was cooked in "
    "them and found the bones as soft as cheese. The inventor had to add a valve soon afterwards, since more than one "
    "of his pots had ended in the ceiling; valves of that kind later made steam engines safe.",
)
"""Real English texts of 3 to 147 words."""


@dataclass(frozen=True)
class Parity:
    """Distance between the logits of two models."""

    max_difference: float
    """Largest absolute difference."""
    max_logit: float
    """Largest absolute logit of ours."""
    rounding: float = 0.0
    """Change of the stock model's own logits from fp32 to fp64; measured if the usual tolerance is exceeded."""

    @property
    def tolerance(self) -> float:
        """Largest difference explained by rounding: 2e-5, times the largest logit if that is above 1.

        Measured between correct kernels in fp32: 1e-6 to 2e-6 of the largest logit in EuroBERT-210m's shape, 2e-6 to
        7e-6 in a shape with 28 layers. Large weights amplify rounding: there the tolerance is eight times the stock
        model's own rounding error, and at most 1 % of the largest logit.
        """
        usual = _TOLERANCE * max(1.0, self.max_logit)
        return max(usual, min(_TIMES_ROUNDING * self.rounding, _LARGEST_PART * self.max_logit))

    @property
    def is_within_tolerance(self) -> bool:
        """True if the two compute the same; False if the difference is NaN."""
        return self.max_difference <= self.tolerance

    def check(self, converting: str, out: Path) -> None:
        """Raise `ToolkitError` if the two do not compute the same; `converting` says which models these are."""
        if not self.is_within_tolerance:
            raise ToolkitError(
                f"{converting}: our logits differ from those of the model in transformers by "
                f"{self.max_difference:.2e}, more than {self.tolerance:.1e} (the largest logit is "
                f"{self.max_logit:.3g}). Nothing was written to {out}. This is a bug."
            )


@dataclass(frozen=True)
class NativeModel:
    """Our model of a checkpoint, without weights, and a function that reads them: fp32, by parameter name."""

    encoder: Encoder
    read: Callable[[str], Tensor]


def open_native(checkpoint: Checkpoint, settings: ModelSettings, *, rounded_to: torch.dtype) -> NativeModel:
    """Our model with a checkpoint's weights, in fp32 after rounding to `rounded_to`."""
    with torch.device("meta"):
        encoder = Encoder(settings)
    shapes = shapes_of(settings)
    found = checkpoint.manifest.tensors
    if missing := shapes.keys() ^ found.keys():
        example = ", ".join(sorted(missing)[:3])
        raise CheckpointError(
            f"{checkpoint.path} holds other parameters than its settings.model, such as {example}. {USE_WHOLE}"
        )
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise CheckpointError(
                f"{checkpoint.path}: {name} has shape {found[name].shape}; its settings.model describe {shape}. "
                + USE_WHOLE
            )

    def read(name: str) -> Tensor:
        whole = torch.empty(shapes[name])
        first = 0
        for block in checkpoint.rows(name):
            whole[first : first + len(block)] = block.to(rounded_to)
            first += len(block)
        return whole

    return NativeModel(encoder.eval(), read)


@dataclass(frozen=True)
class StockModel:
    """A Hugging Face folder as loaded by a user of transformers, but without weights in memory; made by `open_stock`.

    `problems` are tensors that are missing, unexpected or of another shape, by kind; `read` returns a tensor by name.
    """

    name: str
    encode: Any
    model: Any
    problems: dict[str, list[str]]
    read: Callable[[str, torch.dtype], Tensor]


def open_stock(folder: Path, *, tokenizer: Path, name: str) -> StockModel:
    """Load a folder through the Auto classes, without remote code; raise `UserError` if transformers fails."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    # Any: the annotations of the Auto classes do not include `output_loading_info`.
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet_transformers():
            encode = AutoTokenizer.from_pretrained(tokenizer, **local)
            config = read_config(folder, local_files_only=True)
            is_encoder = hub_type(config.model_type).is_encoder
            auto: Any = AutoModelForMaskedLM if is_encoder else AutoModelForCausalLM
            model, report = auto.from_pretrained(
                folder, config=config, dtype=torch.float32, device_map="meta", output_loading_info=True, **local
            )
    except Exception as error:  # another library's loader may raise anything
        raise UserError(f"transformers does not load {name}: {error}") from error
    # The rotary angles are not weights: they are computed when the module is created.
    angles = model.model.rotary_emb
    model.model.rotary_emb = type(angles)(model.config)
    problems = {key: sorted(map(str, names)) for key, names in report.items() if names}
    return StockModel(name, encode, model.eval(), problems, HubWeights.open(folder).tensor)


@torch.no_grad()
def compare_logits(
    stock: StockModel,
    native: NativeModel,
    *,
    attention: AttentionKind,
    pad_id: int,
    without: int | None = None,
    shared: tuple[Tensor, Tensor] | None = None,
) -> Parity:
    """Compare the logits of a folder's model with ours on `SENTENCES`.

    Args:
        attention: the attention kind of the folder's model.
        pad_id: padding id of a batch.
        without: a vocabulary entry to leave out, because it is new.
        shared: ids of the entries that the two vocabularies share, in the folder's and in ours, if they differ; the
            texts are reduced to them.
    """
    vocab_size = stock.model.config.vocab_size
    if shared is None:
        vocab_size = min(vocab_size, native.encoder.lm_head.weight.shape[0])
    longest = min(_MOST_TOKENS, native.encoder.settings.max_position_embeddings)
    texts = [stock.encode(sentence, truncation=True, max_length=longest)["input_ids"] for sentence in SENTENCES]
    largest_id = max((max(ids) for ids in texts if ids), default=None)
    if largest_id is None or largest_id >= vocab_size:
        given = "no id at all" if largest_id is None else f"the id {largest_id:,}"
        raise CheckpointError(
            f"{stock.name}: the tokenizer gives {given}, and the model has {vocab_size:,} entries. "
            "Give the model the tokenizer it was trained with."
        )
    same_V = torch.tensor([token_id for token_id in range(vocab_size) if token_id != without])
    theirs_V, ours_V = (same_V, same_V) if shared is None else shared
    ours_of = torch.full((vocab_size,), -1).index_copy(0, theirs_V, ours_V)
    cut = [ids[ours_of[ids] >= 0] for ids in map(torch.tensor, texts) if len(ids)]
    known = [ids for ids in cut if len(ids)] or [theirs_V[:longest]]
    alone, batch = max(known, key=len), [ids[:_MOST_TOKENS_IN_A_BATCH] for ids in known]
    hidden_ND = _packed_hidden(native, [ours_of[ids] for ids in (alone, *batch)], attention)
    lengths_B = torch.tensor([len(ids) for ids in batch])
    batch_BS = nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=pad_id)
    batch_mask_BS = torch.arange(batch_BS.shape[1]) < lengths_B[:, None]
    found = Parity(max_difference=0.0, max_logit=0.0)
    inputs = [(alone[None], None), (batch_BS, batch_mask_BS)]
    for theirs_NV in _stock_logits(stock, inputs):
        # Read again in each of the two passes: keeping it would add to the peak memory of the other model's tensors.
        head_VD = native.read(EMBEDDING if native.encoder.settings.tie_word_embeddings else HEAD)
        bias_V = None if native.encoder.lm_head.bias is None else native.read(HEAD_BIAS)
        for start in range(0, len(theirs_NV), _ROWS):
            rows_ND = hidden_ND[start : start + _ROWS]
            expected_NV = linear(rows_ND[: len(theirs_NV) - start], head_VD, bias_V).float()[:, ours_V]
            differences_NV = theirs_NV[start : start + _ROWS, theirs_V] - expected_NV
            # The maximum of a tensor, unlike Python's own, propagates NaN.
            differences = torch.stack([torch.tensor(found.max_difference), differences_NV.abs().max()])
            found = Parity(float(differences.max()), max(found.max_logit, float(expected_NV.abs().max())))
        hidden_ND = hidden_ND[len(theirs_NV) :]
        del head_VD, theirs_NV
    if not found.is_within_tolerance:
        found = replace(found, rounding=_rounding_error(stock, inputs))
    return found


def _rounding_error(stock: StockModel, inputs: list[tuple[Tensor, Tensor | None]]) -> float:
    """Largest difference between the stock model's logits in fp32 and in fp64, for pairs of ids (B, S) and mask (B, S)
    or None. Covers all compared texts: the first words of a short text may round ten times as badly as a long one.
    """
    largest = 0.0
    for each in inputs:
        (rounded_NV,), (exact_NV,) = (_stock_logits(stock, [each], dtype) for dtype in (torch.float32, torch.float64))
        for start in range(0, len(exact_NV), _ROWS):
            rows = slice(start, start + _ROWS)
            largest = max(largest, float((exact_NV[rows] - rounded_NV[rows]).abs().max()))
    return largest


def _packed_hidden(native: NativeModel, texts: list[Tensor], attention: AttentionKind) -> Tensor:
    """(N, D) inputs of our vocabulary projection for all texts, which are packed as segments of one row."""
    lengths = torch.tensor([len(ids) for ids in texts])
    segments_BS = torch.repeat_interleave(torch.arange(1, len(texts) + 1), lengths)[None]
    with _streamed(native.encoder, native.read):
        hidden_ND: Tensor = native.encoder.head(
            native.encoder.model(torch.cat(texts)[None], segments_BS, attention, None)
        )
    return hidden_ND


def _stock_logits(
    stock: StockModel, inputs: list[tuple[Tensor, Tensor | None]], dtype: torch.dtype = torch.float32
) -> Iterator[Tensor]:
    """Logits of the stock model, (N, V) without padding, for each pair of ids (B, S) and mask (B, S) or None."""
    model = stock.model
    with _streamed(model, lambda name: stock.read(name, dtype)):
        for input_ids_BS, mask_BS in inputs:
            if mask_BS is None:
                yield model(input_ids=input_ids_BS).logits.flatten(0, 1)
            else:
                yield model(input_ids=input_ids_BS, attention_mask=mask_BS.long()).logits[mask_BS]


@contextmanager
def _streamed(model: nn.Module, read: Callable[[str], Tensor]) -> Iterator[None]:
    """Inside the block, each module has its own parameters only while it runs; the model itself has none."""
    # A tied head has the name of the embedding, which comes first.
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    handles = []
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        wanted = {key: names[id(parameter)] for key, parameter in own.items()}

        def fill(module: nn.Module, _: Any, wanted: dict[str, str] = wanted) -> None:
            for key, name in wanted.items():
                module._parameters[key] = nn.Parameter(read(name), requires_grad=False)

        def empty(module: nn.Module, _: Any, __: Any, own: dict[str, nn.Parameter] = own) -> None:
            module._parameters.update(own)

        handles += [module.register_forward_pre_hook(fill), module.register_forward_hook(empty)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
