"""Padded batches of token ids from texts."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils.data import Dataset
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.finetuning.examples import Example

Encoded = dict[str, list[int]]


class InputBuilder:
    """Turns texts into ids: what the tokenizer itself adds around them, and an end-of-text token where it adds none.

    A pair goes through the tokenizer's own template for pairs; one that has none puts a line break between the two.

    Args:
        tokenizer: of the encoder.
        max_length: tokens of an input, special tokens included.
        accepted: names of the arguments that the model's forward takes; others that the tokenizer returns are dropped.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_length: int, accepted: frozenset[str]) -> None:
        self._tokenizer, self._accepted = tokenizer, accepted
        single = tokenizer("a").input_ids
        ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
        self._end_id: int | None = None
        if not single or single[-1] not in ends:
            self._end_id = tokenizer.eos_token_id
        self._max_length = max_length - (self._end_id is not None)
        has_pair_template = tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add()
        self._pair_prefix = "" if has_pair_template else "\n"

    def __call__(self, examples: Sequence[Example]) -> tuple[list[Encoded], int]:
        """Encode all examples; also returns how many were too long and were truncated.

        Raises:
            UserError: the special tokens leave no room for text.
        """
        first = [example.text for example in examples]
        pairs = [example.text_pair for example in examples if example.text_pair is not None]
        second = [self._pair_prefix + text for text in pairs] if pairs else None
        self._check_room(num_texts=2 if pairs else 1)
        encoded = self._tokenizer(first, second, verbose=False)
        num_cut = sum(len(ids) > self._max_length for ids in encoded.input_ids)
        if num_cut:
            encoded = self._tokenizer(first, second, truncation="longest_first", max_length=self._max_length)
        columns: dict[str, list[list[int]]] = dict(encoded)
        rows = [
            {name: list(values[row]) for name, values in columns.items() if name in self._accepted}
            for row in range(len(first))
        ]
        return [self._closed(row) for row in rows], num_cut

    def _check_room(self, *, num_texts: int) -> None:
        """Below this, tokenizers drop the text, or truncate nothing at all."""
        num_ends = int(self._end_id is not None)
        num_special = self._tokenizer.num_special_tokens_to_add(pair=num_texts == 2)
        if self._max_length < num_special + num_texts:
            raise UserError(
                f"max_length = {self._max_length + num_ends} leaves no room for text: the tokenizer adds "
                f"{counted(num_special + num_ends, 'special token')} to each input. Set max_length to at least "
                f"{num_special + num_ends + num_texts}."
            )

    def _closed(self, row: Encoded) -> Encoded:
        if self._end_id is None:
            return row
        added = {
            "input_ids": self._end_id,
            "attention_mask": 1,
            "token_type_ids": (row.get("token_type_ids") or [0])[-1],
        }
        return {name: [*values, added[name]] for name, values in row.items()}


@dataclass(frozen=True)
class EncodedExamples(Dataset[dict[str, object]]):
    """Encoded texts with their class numbers, as the Trainer reads them."""

    rows: list[Encoded]
    classes: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {**self.rows[index], "labels": self.classes[index]}

    def check_not_empty(self, place: str) -> None:
        """An input without a single token has nothing to pool.

        Raises:
            UserError: names the first such row of `place`.
        """
        for number, row in enumerate(self.rows, start=1):
            if not row["input_ids"]:
                raise UserError(
                    f"{place}, row {number}: the text is empty, and this tokenizer adds no special tokens. "
                    "Remove the row."
                )


def padding_collator(tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
    """Pads a batch on the right to its longest row; the attention mask hides the padding."""
    padding = copy.deepcopy(tokenizer)
    padding.padding_side = "right"
    if padding.pad_token_id is None:
        padding.pad_token_id = 0  # Any id will do behind the mask.
    return DataCollatorWithPadding(padding)
