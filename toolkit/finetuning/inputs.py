"""Token ids from texts: as the tokenizer makes them, and as the paper's authors do."""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tokenizers import Tokenizer
from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tokenization.backend import framing_post_processor
from tokenization.frame import Frame, post_processor_frame
from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.finetuning.encoder_source import EncoderSource

Encoded = dict[str, list[int]]


def framed_source(source: EncoderSource, *, protocol: Literal["standard", "paper"]) -> EncoderSource:
    """The encoder with a tokenizer that makes complete inputs, here and wherever the fine-tuned folder is loaded.

    `standard` keeps the special tokens that the tokenizer adds, appends its end-of-text token if it adds no end, and
    puts a line break between the texts of a pair if it has no pair template. `paper` adds only an end-of-text token.

    Raises:
        UserError: something has to be added, and the tokenizer cannot be changed.
    """
    tokenizer, is_paper = copy.deepcopy(source.tokenizer), protocol == "paper"
    end_id = missing_end_id(tokenizer)
    has_template = tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add()
    if is_paper or end_id is not None or not has_template:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise UserError(
                f"the tokenizer of {source.model} ({type(tokenizer).__name__}) adds no end to a text, or nothing "
                "between two, and is not a tokenizer.json that could be changed. Use an encoder with one."
            )
        frame = Frame() if is_paper else post_processor_frame(backend)
        end_id = tokenizer.eos_token_id if is_paper else end_id
        back = [*frame.back, *([] if end_id is None else [end_id])]
        if is_paper:
            between = []
        elif has_template:
            owners = (pair := tokenizer("a", "a")).sequence_ids(0)
            between = pair.input_ids[len(owners) - owners[::-1].index(0) : owners.index(1)]
        else:
            line_break = tokenizer("\n", add_special_tokens=False).input_ids
            between = [token_id for token_id in line_break if token_id != tokenizer.unk_token_id]
        content = json.loads(backend.to_str())
        content["post_processor"] = framing_post_processor(backend, front=frame.front, back=back, between=between)
        tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=Tokenizer.from_str(json.dumps(content, ensure_ascii=False)),
            clean_up_tokenization_spaces=False,
            # The paper's inputs are cut at their end (`paper_inputs`).
            truncation_side="right" if is_paper else tokenizer.truncation_side,
            **{role: str(token) for role, token in tokenizer.special_tokens_map.items() if not isinstance(token, list)},
        )
    return fitted_source(source, tokenizer, longest=paper_length(source) if is_paper else source.max_length)


def fitted_source(source: EncoderSource, tokenizer: PreTrainedTokenizerBase, *, longest: int) -> EncoderSource:
    """Return the encoder with a tokenizer limited to the encoder's inputs and to `longest` tokens."""
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name in source.accepted]
    tokenizer.model_max_length = longest
    return replace(source, tokenizer=tokenizer)


def encode_texts(
    source: EncoderSource, first: Sequence[str], pairs: Sequence[str] | None = None
) -> tuple[list[Encoded], int]:
    """Tokenize texts, or pairs of texts, with the tokenizer of `framed_source`.

    Also returns how many were truncated.
    """
    tokenizer, longest, second = source.tokenizer, source.max_length, None if pairs is None else list(pairs)
    num_special = tokenizer.num_special_tokens_to_add(pair=second is not None)
    check_room(longest, num_special, num_texts=1 if second is None else 2)
    encoded = tokenizer(list(first), second, verbose=False)
    num_cut = sum(len(ids) > longest for ids in encoded.input_ids)
    if num_cut:
        encoded = tokenizer(list(first), second, truncation="longest_first", max_length=longest)
    return [input_row(encoded, row, source) for row in range(len(first))], num_cut


def input_row(encoded: BatchEncoding, row: int, source: EncoderSource, *, longest: int | None = None) -> Encoded:
    """Input of a row, cut to `longest` tokens: the tokenizer's outputs that the encoder accepts."""
    return {name: list(encoded[name][row][:longest]) for name in encoded if name in source.accepted}


def check_room(max_length: int, num_special: int, *, num_texts: int = 1) -> None:
    """Refuse a maximum length so short that tokenizers drop the text, or do not truncate at all."""
    if max_length < num_special + num_texts:
        raise UserError(
            f"max_length = {max_length} leaves no room for text: the tokenizer adds "
            f"{counted(num_special, 'special token')} to each input. Set max_length to at least "
            f"{num_special + num_texts}."
        )


def check_tells_offsets(source: EncoderSource) -> None:
    """Refuse a tokenizer that does not return the character offsets of its tokens."""
    if not source.tokenizer.is_fast:
        raise UserError(
            f"the tokenizer of {source.model} ({type(source.tokenizer).__name__}) does not tell which characters its "
            "tokens stand for, by which words and answers are found. Use an encoder with a tokenizer.json."
        )


def missing_end_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Id of the end-of-text token if the tokenizer has one and does not end texts itself, else None."""
    single = tokenizer("a").input_ids
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
    end_id: int | None = tokenizer.eos_token_id
    return None if single and single[-1] in ends else end_id


def paper_inputs(texts: Sequence[str], source: EncoderSource) -> tuple[list[Encoded], int]:
    """Encode texts as the paper's authors do: the end-of-text token appended as a string, nothing prepended.

    Truncation, to 99 % of the model's limit, may remove that token, as theirs does.
    Also returns how many texts were truncated.
    """
    tokenizer = source.tokenizer
    longest = paper_length(source)
    encoded = tokenizer([text + (tokenizer.eos_token or "") for text in texts], add_special_tokens=False, verbose=False)
    rows = [input_row(encoded, row, source, longest=longest) for row in range(len(texts))]
    return rows, sum(len(ids) > longest for ids in encoded.input_ids)


def paper_length(source: EncoderSource) -> int:
    """The paper's longest input in tokens: 99 % of the model's limit, such as 2,028 of 2,048."""
    return max(1, round(source.max_length * 0.99))


def check_not_empty(rows: Sequence[Encoded], place: str, *, numbers: Sequence[int]) -> None:
    """Refuse an input without tokens: there is nothing to pool. `numbers` are those of the rows in `place`."""
    for number, row in zip(numbers, rows, strict=True):
        if not row["input_ids"]:
            raise UserError(
                f"{place}, row {number}: the text is empty, and this tokenizer adds no special tokens. Remove the row."
            )
