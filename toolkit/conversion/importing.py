"""Import of a Hugging Face model as a checkpoint that runs can start from and that can be exported again.

OUT is a checkpoint folder with weights and tokenizer but without optimizer moments. It is written next to its
destination, compared with the model in transformers on real text, and renamed. Weights are copied a few rows at a time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

import toolkit
from tokenization import MaskOrigin, Tokenizer
from tokenization.hub import HubName
from toolkit.checkpoint.manifest import CheckpointManifest, LayoutEntry, VocabularyEntry
from toolkit.checkpoint.read import open_unverified
from toolkit.checkpoint.write import write_weights_only
from toolkit.conversion.families import Described, describe
from toolkit.conversion.folders import check_output, local_files, output_directory
from toolkit.conversion.forms import DEFAULT_HEAD, ImportHead, choose
from toolkit.conversion.parity import Parity, compare_logits, open_native, open_stock
from toolkit.conversion.stored import open_stored
from toolkit.conversion.tokenizer import compare_ids, open_other_tokenizer, open_tokenizer, preprocess_options
from toolkit.conversion.vocabulary import VocabularyChange, change_vocabulary
from toolkit.conversion.weights import HubTensors, HubWeights, shapes_of
from toolkit.core.errors import CheckpointError
from toolkit.core.types import Vocabulary
from toolkit.model.config import ModelSettings, padded_vocabulary
from toolkit.model.families import hub_type
from toolkit.model.parameters import EMBEDDING, HEAD, HEAD_BIAS
from toolkit.model_folder import card_facts

DEFAULT_MASK_TOKEN = "auto"
_DIGEST_OF_NOTHING = "0" * 32
_OWN, _OTHER = "own", "other"


@dataclass(frozen=True)
class ImportReport:
    """Result of an import."""

    model: str
    """Source of the import, as given."""
    out: Path
    """The folder that was written."""
    family: str
    """The `model_type` of the model."""
    settings: ModelSettings
    """Its shape as our settings."""
    num_parameters: int
    """Number of parameters; a tied head is counted once."""
    preprocess_options: str
    """Options that preprocessing with its tokenizer needs, such as " --no-eod"; usually empty."""
    changes: tuple[str, ...]
    """All differences between the source and the written checkpoint, one sentence each."""
    max_difference: float
    """Largest absolute difference between a logit of the model in transformers and ours."""
    max_logit: float
    """Largest absolute logit of ours."""


@dataclass(frozen=True)
class _Vocabulary:
    """The vocabulary of the checkpoint: its tokenizer, and where the rows of embedding and head come from."""

    tokenizer: Tokenizer
    settings: ModelSettings
    """The model's shape with this vocabulary."""
    new_mask: int | None = None
    """Row of the mask token, if it was added."""
    change: VocabularyChange | None = None
    """Change from the model's own tokenizer to another one, if any."""


def from_hf(
    model: Path | str,
    out: Path | str,
    *,
    mask_token: str = DEFAULT_MASK_TOKEN,
    tokenizer: Path | str | None = None,
    head: ImportHead | str = DEFAULT_HEAD,
) -> ImportReport:
    """Convert a Hugging Face model to a checkpoint, and check its logits against the model in transformers.

    Args:
        model: a folder that `save_pretrained` wrote, or the id of a model on the hub; safetensors only.
        out: must not exist, or be an empty folder. Usable as `init.from`, as a tokenizer, and in `to_hf`.
        mask_token: `auto` (the tokenizer's own, else `reserved`, else `mean`), `reserved` (the first reserved slot of
            the vocabulary), `mean` (a new id, whose embedding is the mean of all others), `id:N`, `token:TEXT`.
        tokenizer: another tokenizer, of any kind that `tokenization.load` accepts; None keeps the model's own.
            Shared pieces keep their rows; new ones get the mean of the rows of the old pieces that spell them.
        head: `new` initializes missing parts of the model's head, as in a sentence encoder or a classifier; `own`
            refuses such a model.

    Raises:
        UserError: the model has a part that ours lacks, or `out` cannot be written.
        CheckpointError: a tensor is missing, damaged, unknown or of another shape, or the vocabulary does not fit.
        tokenization.TokenizationError: a tokenizer cannot be read, or the requested mask token does not exist.
        ToolkitError: our model's logits differ. Nothing is left at `out`.
    """
    name, out, head = str(model), Path(out), choose(ImportHead, head)
    check_output(out)
    folder = local_files(name)
    described = describe(folder, name)
    tensors, changes = HubTensors(described.settings, hub_type(described.family)), list(described.notes)
    with TemporaryDirectory(prefix="toolkit-import-") as place:
        stored = open_stored(folder, described, tensors, head, Path(place), changes)
        weights = stored.by_our_names(tensors)
        vocabulary = _vocabulary(described, weights, mask_token, tokenizer, Path(place), changes)
        origin = {**_origin(name, folder), "family": described.family, **card_facts(folder)}
        if vocabulary.change is not None:
            other = vocabulary.tokenizer.source or Path(str(tokenizer)).resolve().name
            origin |= {"tokenizer": other, "rows": vocabulary.change.describe()}
        with output_directory(out) as unfinished:
            manifest = write_weights_only(
                unfinished,
                _manifest(vocabulary, origin),
                shapes=shapes_of(vocabulary.settings),
                read=lambda parameter: _blocks(weights, parameter, vocabulary),
                tokenizer_folder=Path(place) / (_OWN if tokenizer is None else _OTHER),
            )
            parity = _compare(stored, unfinished, described, vocabulary, tokenizer=Path(place) / _OWN)
            parity.check(f"importing {name}", out)
    if parity.rounding:
        changes.append(
            f"logits differ by up to {parity.max_difference:.1e}: this model makes rounding grow, "
            f"its own logits in fp32 are {parity.rounding:.1e} off those in fp64"
        )
    return ImportReport(
        model=name,
        out=out,
        family=described.family,
        settings=vocabulary.settings,
        num_parameters=sum(torch.Size(entry.shape).numel() for entry in manifest.tensors.values()),
        preprocess_options=preprocess_options(vocabulary.tokenizer),
        changes=tuple(changes),
        max_difference=parity.max_difference,
        max_logit=parity.max_logit,
    )


def _vocabulary(
    described: Described,
    weights: HubWeights,
    mask_token: str,
    other: Path | str | None,
    place: Path,
    changes: list[str],
) -> _Vocabulary:
    """The vocabulary of the checkpoint; saves the tokenizers inside `place`, and appends decisions to `changes`."""
    policy = mask_token if other is None else DEFAULT_MASK_TOKEN
    own, said = open_tokenizer(weights.folder, described, mask_token=policy)
    own.save(place / _OWN)
    rows, tokens = weights.shape(EMBEDDING)[0], own.encoded_vocabulary_size
    if tokens > rows:
        first = own.backend.id_to_token(rows)
        raise CheckpointError(
            f"{weights.folder}: {EMBEDDING} has {rows:,} rows, but the tokenizer beside it has ids up to "
            f"{tokens - 1:,} (id {rows:,} is {first!r}).\n"
            "The two do not belong together: give the model the tokenizer it was trained with."
        )
    if other is None:
        changes += said
        vocabulary = _with_mask(described, own, rows, changes)
        changes += compare_ids(weights.folder, place / _OWN)
        return vocabulary
    new, said = open_other_tokenizer(other, mask_token=mask_token)
    new.save(place / _OTHER)
    change = change_vocabulary(own, new)
    size = len(change.sources)
    changes += [f"vocabulary: {size:,} entries in place of {rows:,}; rows: {change.describe()}", *said]
    return _Vocabulary(new, described.settings.model_copy(update={"vocab_size": size}), change=change)


def _with_mask(described: Described, tokenizer: Tokenizer, rows: int, changes: list[str]) -> _Vocabulary:
    """The model's own vocabulary, with a row for the mask token if it lacks one."""
    tokens = tokenizer.encoded_vocabulary_size
    if tokens < rows:
        changes.append(f"vocabulary: {rows - tokens:,} of the model's {rows:,} entries are padding after the tokens")
    if tokenizer.mask.origin is not MaskOrigin.APPENDED:
        return _Vocabulary(tokenizer, described.settings)
    mask = tokenizer.mask.id
    size = rows if mask < rows else padded_vocabulary(mask + 1)
    where = (
        "a padding entry" if mask < rows else f"a new one, the vocabulary has {size:,} entries now, padding included"
    )
    changes.append(f"embedding of {tokenizer.mask.text} (id {mask:,}, {where}): the mean of {tokens:,} embeddings")
    return _Vocabulary(tokenizer, described.settings.model_copy(update={"vocab_size": size}), new_mask=mask)


def _blocks(weights: HubWeights, name: str, vocabulary: _Vocabulary) -> Iterable[Tensor]:
    """A parameter, fp32, in blocks of rows; embedding, head and head bias have the rows of the new vocabulary.

    An unused entry of an untied head is unchanged: it is never a target, and all logits stay equal.
    """
    mask, is_indexed = vocabulary.new_mask, name in (EMBEDDING, HEAD, HEAD_BIAS)
    is_grown = vocabulary.settings.vocab_size != weights.shape(EMBEDDING)[0]
    mean = None
    if mask is not None and is_indexed and (name == EMBEDDING or is_grown):
        mean = _mean_row(weights, name, vocabulary.tokenizer.encoded_vocabulary_size)
    blocks = weights.rows(name)
    if vocabulary.change is not None and is_indexed:
        old = weights.tensor(name)
        blocks = (rows.view(-1, *old.shape[1:]) for rows in vocabulary.change.rows(old.view(len(old), -1)))
    first = 0
    for block in blocks:
        if not torch.isfinite(block).all():
            raise CheckpointError(
                f"{weights.folder}: {name} holds non-finite values, so the model is damaged.\nDownload it again."
            )
        if mask is not None and mean is not None and first <= mask < first + len(block):
            block[mask - first] = mean
        first += len(block)
        yield block
    if mean is not None and is_grown:
        # Padding after the mask gets the mean too: as likely as an unknown word.
        yield mean.repeat(shapes_of(vocabulary.settings)[name][0] - first, *[1] * mean.dim())


def _mean_row(weights: HubWeights, name: str, num_rows: int) -> Tensor:
    """The mean of the first `num_rows` rows, which belong to tokens, without padding."""
    total = torch.zeros(weights.shape(name)[1:], dtype=torch.float64)
    first = 0
    for block in weights.rows(name):
        total += block[: max(0, num_rows - first)].double().sum(0)
        first += len(block)
    return (total / num_rows).float()


def _manifest(imported: _Vocabulary, origin: dict[str, str]) -> CheckpointManifest:
    """Manifest at step 0 without a run: a model, a vocabulary, and their origin."""
    tokenizer = imported.tokenizer
    vocabulary = Vocabulary.by_role(
        tokenizer.special_ids, size=tokenizer.vocabulary_size, special_ids=tokenizer.all_special_ids
    )
    return CheckpointManifest(
        toolkit_version=toolkit.__version__,
        step=0,
        optimizer_step=0,
        tokens=0,
        data_position=0,
        data_digest=_DIGEST_OF_NOTHING,
        settings={"model": imported.settings.model_dump(mode="json")},
        vocabulary=VocabularyEntry.of(vocabulary, tokenizer.fingerprint),
        layout=LayoutEntry(world_size=1, zero_stage=0),
        tensors={},
        files={},
        losses={},
        origin=origin,
    )


def _origin(name: str, folder: Path) -> dict[str, str]:
    """Origin of the model: a folder's name without its path on this machine, or a repository and its commit."""
    if Path(name).is_dir():
        return {"model": Path(name).resolve().name}
    hub_name = HubName.parse(name)
    assert hub_name is not None
    return {"model": hub_name.repository, "revision": folder.name}


def _compare(
    stored: HubWeights, imported: Path, described: Described, vocabulary: _Vocabulary, *, tokenizer: Path
) -> Parity:
    """Compare with the model in transformers; `tokenizer` is the folder of its own tokenizer."""
    checkpoint, change = open_unverified(imported), vocabulary.change
    return compare_logits(
        replace(open_stock(stored.folder, tokenizer=tokenizer, name=str(stored.folder)), read=stored.tensor),
        open_native(checkpoint, vocabulary.settings, rounded_to=torch.float32),
        attention=described.attention,
        pad_id=checkpoint.manifest.vocabulary.pad_id if change is None else 0,
        without=vocabulary.new_mask,
        shared=None if change is None else change.shared,
    )
