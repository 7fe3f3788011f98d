"""Token ids from texts: as the tokenizer makes them, and as the paper's authors do."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.finetuning.source import EncoderSource

Encoded = dict[str, list[int]]


class InputBuilder:
    """Builder of ids: what the tokenizer itself adds around a text, and an end-of-text token where it adds none.

    A pair goes through the tokenizer's own template for pairs; one that has none puts a line break between the two.
    What the tokenizer returns beyond the arguments that the encoder accepts is dropped.

    Attributes:
        max_length: tokens that the tokenizer itself may return; the end-of-text token that is added here comes on top.
        pair_prefix: stands in front of the second text of a pair.
    """

    def __init__(self, source: EncoderSource) -> None:
        tokenizer, max_length = source.tokenizer, source.max_length
        self._tokenizer, self._accepted = tokenizer, source.accepted
        self._end_id = missing_end_id(tokenizer)
        self.max_length = max_length - (self._end_id is not None)
        has_pair_template = tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add()
        self.pair_prefix = "" if has_pair_template else "\n"

    def __call__(self, first: Sequence[str], pairs: Sequence[str] | None = None) -> tuple[list[Encoded], int]:
        """Encode texts, or pairs of texts; also returns how many were too long and were truncated."""
        second = None if pairs is None else [self.pair_prefix + text for text in pairs]
        self.check_room(num_texts=1 if pairs is None else 2)
        encoded = self._tokenizer(list(first), second, verbose=False)
        num_cut = sum(len(ids) > self.max_length for ids in encoded.input_ids)
        if num_cut:
            encoded = self._tokenizer(list(first), second, truncation="longest_first", max_length=self.max_length)
        columns: dict[str, list[list[int]]] = dict(encoded)
        rows = [
            {name: list(values[row]) for name, values in columns.items() if name in self._accepted}
            for row in range(len(first))
        ]
        return [self.close(row) for row in rows], num_cut

    def check_room(self, *, num_texts: int) -> None:
        """Refuse a `max_length` at which tokenizers drop the text, or truncate nothing at all."""
        num_ends = int(self._end_id is not None)
        num_special = self._tokenizer.num_special_tokens_to_add(pair=num_texts == 2) + num_ends
        check_room(self.max_length + num_ends, num_special, num_texts=num_texts)

    def close(self, row: Encoded) -> Encoded:
        """A row as the tokenizer made it, with the end-of-text token where it added none."""
        if self._end_id is None:
            return row
        added = {
            "input_ids": self._end_id,
            "attention_mask": 1,
            "token_type_ids": (row.get("token_type_ids") or [0])[-1],
        }
        return {name: [*values, added[name]] for name, values in row.items()}


def check_room(max_length: int, num_special: int, *, num_texts: int = 1) -> None:
    """Refuse a length below which tokenizers drop the text, or truncate nothing at all."""
    if max_length < num_special + num_texts:
        raise UserError(
            f"max_length = {max_length} leaves no room for text: the tokenizer adds "
            f"{counted(num_special, 'special token')} to each input. Set max_length to at least "
            f"{num_special + num_texts}."
        )


def check_tells_offsets(source: EncoderSource) -> None:
    """Refuse a tokenizer that does not tell which characters its tokens stand for."""
    if not source.tokenizer.is_fast:
        raise UserError(
            f"the tokenizer of {source.model} ({type(source.tokenizer).__name__}) does not tell which characters its "
            "tokens stand for, by which words and answers are found. Use an encoder with a tokenizer.json."
        )


def missing_end_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The end-of-text token where the tokenizer has one and does not end texts itself, else None."""
    single = tokenizer("a").input_ids
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
    end_id: int | None = tokenizer.eos_token_id
    return None if single and single[-1] in ends else end_id


def paper_inputs(texts: Sequence[str], source: EncoderSource) -> tuple[list[Encoded], int]:
    """Encode texts as the paper's authors do: the end-of-text token as a string behind the text, nothing in front.

    Truncation, to 99 % of what the model takes, may remove that token, as theirs does.
    Also returns how many texts were truncated.
    """
    tokenizer = source.tokenizer
    longest = paper_length(source)
    encoded = tokenizer([text + (tokenizer.eos_token or "") for text in texts], add_special_tokens=False, verbose=False)
    rows = [
        {name: list(values[row][:longest]) for name, values in dict(encoded).items() if name in source.accepted}
        for row in range(len(texts))
    ]
    return rows, sum(len(ids) > longest for ids in encoded.input_ids)


def paper_length(source: EncoderSource) -> int:
    """The paper's longest input in tokens: 99 % of what the model takes, such as 2,028 of 2,048."""
    return max(1, round(source.max_length * 0.99))


def check_not_empty(rows: Sequence[Encoded], place: str, numbers: Sequence[int] | None = None) -> None:
    """Refuse an input without a single token, which has nothing to pool.

    The message names its row of `place`, by `numbers` where the inputs are not all rows.
    """
    for number, row in zip(numbers or range(1, len(rows) + 1), rows, strict=True):
        if not row["input_ids"]:
            raise UserError(
                f"{place}, row {number}: the text is empty, and this tokenizer adds no special tokens. Remove the row."
            )
