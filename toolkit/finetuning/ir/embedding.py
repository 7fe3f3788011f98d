"""Encoders as SentenceTransformers, one vector per text, and exact search with them.

A SentenceTransformer tokenizes by itself, in training, in our search and wherever its folder is loaded.

Shapes: Q queries, C documents of a chunk, D width of the vectors.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from transformers import AutoModel, PreTrainedModel

from toolkit.core.console import console, progress, quiet_transformers
from toolkit.finetuning.encoder_source import EncoderSource, model_loading
from toolkit.finetuning.heads import load_network
from toolkit.finetuning.inputs import check_room, fitted_source
from toolkit.finetuning.trainer import settle_accelerator
from toolkit.model_folder import Modules, save_tokenizer, write_modules

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_DOCUMENTS_AT_ONCE = 4096
_KEPT = ("Transformer", "Pooling", "Normalize")


def with_modules(source: EncoderSource, *, max_length: int | None) -> EncoderSource | None:
    """Source with its own pooling, and its maximum length or `max_length`; None if it is not a SentenceTransformer.

    Unsupported modules and similarity functions are dropped with a message.
    """
    settle_accelerator()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import is_sentence_transformer_model

    with model_loading(source.model):
        if not is_sentence_transformer_model(source.model):
            return None
        whole = SentenceTransformer(source.model, device="cpu", trust_remote_code=False)
    modules = modules_of(whole)
    longest = min(source.max_length, max_length or modules.longest)
    modules = replace(modules, longest=longest)
    lost = [type(module).__name__ for module in whole if type(module).__name__ not in _KEPT]
    if whole.similarity_fn_name not in (None, "cosine"):
        lost.append(f"comparison by {whole.similarity_fn_name} (the cosine is used)")
    told = [*modules.pooling, *(["normalized"] * modules.is_normalized), f"{longest:,} tokens"]
    told += [f"prompt {name}" for name, prompt in modules.prompts.items() if prompt]
    console().print(f"{source.model} is a SentenceTransformer: {', '.join(told)}.")
    if lost:
        console().print(f"{source.model}: left out: {', '.join(lost)}. Vectors differ from its own for that.")
    fitted = fitted_source(source, copy.deepcopy(source.tokenizer), longest=longest)
    return replace(fitted, max_length=longest, modules=modules)


def modules_of(embedder: "SentenceTransformer") -> Modules:
    """Modules after a SentenceTransformer's encoder, limited to those that folders written here can declare."""
    kept: dict[str, Any] = {type(module).__name__: module for module in embedder}
    kinds = getattr(kept.get("Pooling"), "pooling_mode", "mean")
    return Modules(
        longest=embedder.max_seq_length or embedder.tokenizer.model_max_length,
        pooling=(kinds,) if isinstance(kinds, str) else tuple(kinds),
        pools_prompt=getattr(kept.get("Pooling"), "include_prompt", True),
        is_normalized="Normalize" in kept,
        lowers_case=getattr(kept.get("Transformer"), "do_lower_case", False),
        prompts=embedder.prompts,
        default_prompt=embedder.default_prompt_name,
    )


def new_embedder(source: EncoderSource, *, prompts: Mapping[str, str | None]) -> "SentenceTransformer":
    """An encoder with its modules, or else mean pooling, and cosine similarity; on the CPU, in fp32.

    Prompts, by name (`query`, `document`), are prepended to texts.
    """
    settle_accelerator()
    from sentence_transformers import SentenceTransformer

    encoder, tokenizer = load_network(AutoModel, source), source.tokenizer
    check_room(tokenizer.model_max_length, tokenizer.num_special_tokens_to_add())
    modules = replace(source.modules or Modules(tokenizer.model_max_length), prompts=prompts)
    # SentenceTransformer reads only folders; the encoder used is the one loaded and checked above.
    with TemporaryDirectory(prefix="toolkit-embedding-") as folder, quiet_transformers():
        save_tokenizer(Path(folder), tokenizer)
        save_encoder(Path(folder), encoder, modules)
        embedder = SentenceTransformer(folder, device="cpu")
    module: Any = embedder[0]
    module.model = encoder
    return embedder


def save_encoder(folder: Path, encoder: PreTrainedModel, modules: Modules) -> None:
    """Write an encoder and the modules of a SentenceTransformer."""
    encoder.save_pretrained(folder)
    write_modules(folder, modules, width=encoder.config.hidden_size)


def search(
    network: "SentenceTransformer", queries: Sequence[Sequence[str]], documents: Sequence[str], *, depth: int, rows: int
) -> list[list[npt.NDArray[np.int64]]]:
    """Rank all documents for each query by exact cosine; ties keep the order of the documents.

    Queries come in groups; a group's rankings are bitwise independent of the other groups. `rows` texts are encoded at
    once. Each query gets the indices of its `depth` best documents, or of all if there are fewer.
    """
    network.eval()
    options: dict[str, Any] = {"batch_size": rows, "normalize_embeddings": True, "show_progress_bar": False}
    asked = [np.asarray(network.encode_query(list(group), **options), np.float32) for group in queries]
    best = [[_Best(depth) for _ in group] for group in queries]
    with progress("searching", total=len(documents), unit="documents") as bar:
        for start in range(0, len(documents), _DOCUMENTS_AT_ONCE):
            texts = list(documents[start : start + _DOCUMENTS_AT_ONCE])
            found_CD = np.asarray(network.encode_document(texts, **options), np.float32)
            for rankings, asked_QD in zip(best, asked, strict=True):
                _add(rankings, asked_QD @ found_CD.T, start)
            bar.update(start + len(texts))
    return [[ranking.numbers for ranking in rankings] for rankings in best]


def _add(rankings: Sequence["_Best"], scores_QC: npt.NDArray[np.float32], start: int) -> None:
    for ranking, scores_C in zip(rankings, scores_QC, strict=True):
        ranking.add(scores_C, start)


class _Best:
    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._scores = np.empty(0, np.float32)
        self.numbers = np.empty(0, np.int64)

    def add(self, scores: npt.NDArray[np.float32], start: int) -> None:
        merged = np.concatenate([self._scores, scores])
        numbers = np.concatenate([self.numbers, np.arange(start, start + len(scores))])
        if len(merged) > self._depth:
            keep = merged >= np.partition(merged, -self._depth)[-self._depth]
            merged, numbers = merged[keep], numbers[keep]
        order = np.lexsort((numbers, -merged))[: self._depth]
        self._scores, self.numbers = merged[order], numbers[order]
