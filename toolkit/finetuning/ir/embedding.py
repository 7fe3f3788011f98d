"""Encoders that give one vector to a text, as SentenceTransformers, and exact search with them.

A SentenceTransformer tokenizes by itself, in training, in our search and wherever its folder is loaded. So what an
input needs beyond the encoder's own tokenizer, an end-of-text token above all, becomes part of the folder's tokenizer.

Shapes: Q queries, C documents of a chunk, D width of the vectors.
"""

import json
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from transformers import AutoModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tokenization.backend import framing_post_processor
from tokenization.frame import post_processor_frame
from toolkit.core.console import progress, quiet_transformers
from toolkit.core.errors import UserError
from toolkit.finetuning.heads import load_network
from toolkit.finetuning.inputs import check_room, missing_end_id, paper_length
from toolkit.finetuning.source import EncoderSource
from toolkit.finetuning.trainer import right_padding, settle_accelerator

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_DOCUMENTS_AT_ONCE = 4096
_PROBE = "The quick brown fox jumps over 13 lazy dogs."


def new_embedder(
    source: EncoderSource, *, protocol: Literal["standard", "paper"], prompts: dict[str, str]
) -> "SentenceTransformer":
    """An encoder with mean pooling over all tokens, compared by the cosine; on the CPU, in fp32.

    `standard` keeps what the tokenizer adds around a text, and adds an end where it adds none; `paper` adds an
    end-of-text token alone, and truncates at 99 % of what the model takes. Prompts, by name (`query`, `document`),
    stand in front of texts.
    """
    settle_accelerator()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder = load_network(AutoModel, source)
    tokenizer = _tokenizer(source, protocol=protocol)
    check_room(tokenizer.model_max_length, tokenizer.num_special_tokens_to_add())
    # The module reads a folder only; the encoder itself is the one that was loaded and checked.
    with TemporaryDirectory(prefix="toolkit-embedding-") as folder, quiet_transformers():
        encoder.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder)
    transformer.model = encoder
    transformer.max_seq_length = tokenizer.model_max_length
    if transformer.tokenizer(_PROBE).input_ids != tokenizer(_PROBE).input_ids:
        raise UserError(
            f"the tokenizer of {source.model} ({type(source.tokenizer).__name__}) gives other ids once it is saved and "
            "loaded. Use an encoder whose tokenizer is a tokenizer.json."
        )
    pooling = Pooling(encoder.config.hidden_size, pooling_mode="mean")
    return SentenceTransformer(
        modules=[transformer, pooling], prompts=prompts, similarity_fn_name="cosine", device="cpu"
    )


def _tokenizer(source: EncoderSource, *, protocol: str) -> PreTrainedTokenizerBase:
    tokenizer = source.tokenizer
    if protocol == "paper":
        back = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        return _limited(_framed(source, front=[], back=back), paper_length(source))
    end_id = missing_end_id(tokenizer)
    if end_id is None:
        return _limited(tokenizer, source.max_length)
    frame = post_processor_frame(_backend(source))
    return _limited(_framed(source, front=frame.front, back=[*frame.back, end_id]), source.max_length)


def _framed(source: EncoderSource, *, front: Sequence[int], back: Sequence[int]) -> PreTrainedTokenizerBase:
    """The tokenizer with other special ids around a text, of a class that reads them from its file again."""
    tokenizer, backend = source.tokenizer, _backend(source)
    content = json.loads(backend.to_str())
    content["post_processor"] = framing_post_processor(backend, front=front, back=back)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(json.dumps(content, ensure_ascii=False)),
        model_input_names=[name for name in tokenizer.model_input_names if name in source.accepted],
        clean_up_tokenization_spaces=False,
        **{role: str(token) for role, token in tokenizer.special_tokens_map.items() if not isinstance(token, list)},
    )


def _backend(source: EncoderSource) -> Tokenizer:
    backend = getattr(source.tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise UserError(
            f"the tokenizer of {source.model} ({type(source.tokenizer).__name__}) adds no end to a text and is not a "
            "tokenizer.json that could be changed. Use an encoder with one."
        )
    return backend


def _limited(tokenizer: PreTrainedTokenizerBase, longest: int) -> PreTrainedTokenizerBase:
    padded = right_padding(tokenizer)
    padded.model_max_length = longest
    return padded


def search(
    network: "SentenceTransformer", queries: Sequence[Sequence[str]], documents: Sequence[str], *, depth: int, rows: int
) -> list[list[npt.NDArray[np.int64]]]:
    """Rank all documents for each query by the cosine, exactly; among equal ones the first document comes first.

    Queries come in groups; what others there are does not change a group's rankings by a bit. `rows` texts pass through
    the encoder at once. Each query gets the numbers of its `depth` best documents, or of all where there are fewer.
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
