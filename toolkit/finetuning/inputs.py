"""From texts to padded batches of token ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from toolkit.core.errors import UserError
from toolkit.finetuning.examples import Example

Encoded = dict[str, list[int]]


class TextEncoder:
    """Turns texts into ids: what the tokenizer itself adds around them, and an end-of-text token where it adds none.

    A pair goes through the tokenizer's own template for pairs; one that has none puts a line break between the two.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> None:
        self._tokenizer = tokenizer
        single = tokenizer("a").input_ids
        ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
        self._end_id: int | None = None
        if not single or single[-1] not in ends:
            self._end_id = tokenizer.eos_token_id
        self._max_length = max_length - (self._end_id is not None)
        has_pair_template = tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add()
        self._pair_prefix = "" if has_pair_template else "\n"

    def __call__(self, examples: Sequence[Example]) -> tuple[list[Encoded], int]:
        """Encode all examples; also how many were longer than the model takes and lost their end."""
        first = [example.text for example in examples]
        pairs = [example.text_pair for example in examples if example.text_pair is not None]
        second = [self._pair_prefix + text for text in pairs] if pairs else None
        encoded = self._tokenizer(first, second, verbose=False)
        num_cut = sum(len(ids) > self._max_length for ids in encoded.input_ids)
        if num_cut:
            encoded = self._tokenizer(first, second, truncation="longest_first", max_length=self._max_length)
        columns: dict[str, list[list[int]]] = dict(encoded)
        rows = [{name: list(values[row]) for name, values in columns.items()} for row in range(len(first))]
        return [self._closed(row) for row in rows], num_cut

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
    """Encoded texts with their class numbers; what the Trainer reads."""

    rows: list[Encoded]
    classes: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {**self.rows[index], "labels": self.classes[index]}

    def check_not_empty(self, place: str) -> None:
        """Refuse an input without a single token: there is nothing to pool.

        Raises:
            UserError: names the first such row of `place`.
        """
        for number, row in enumerate(self.rows, start=1):
            if not row["input_ids"]:
                raise UserError(
                    f"{place}, row {number}: the text is empty, and this tokenizer adds no token of its own. "
                    "Leave the row out."
                )


class Collator:
    """Pads a batch on the right to its longest row.

    Args:
        pad_id: what stands behind the end; the attention mask hides it.
        accepted: names of the arguments that the model's forward takes; others that a tokenizer returns are dropped.
    """

    def __init__(self, *, pad_id: int, accepted: frozenset[str]) -> None:
        self._fill = {"input_ids": pad_id, "attention_mask": 0, "token_type_ids": 0}
        self._names = [name for name in self._fill if name in accepted]

    def __call__(self, examples: Sequence[dict[str, object]]) -> dict[str, torch.Tensor]:
        """Tensors (B, S) by argument name, and `labels` (B,)."""
        batch: dict[str, torch.Tensor] = {}
        for name in self._names:
            if name not in examples[0]:
                continue
            rows: list[list[int]] = [example[name] for example in examples]  # type: ignore[misc]
            longest = max(map(len, rows))
            batch[name] = torch.tensor([row + [self._fill[name]] * (longest - len(row)) for row in rows])
        batch["labels"] = torch.tensor([example["labels"] for example in examples])
        return batch
