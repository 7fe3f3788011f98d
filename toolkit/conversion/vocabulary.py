"""Change of a model's vocabulary: each row of the new embedding and head is built from old rows.

A piece that both tokenizers have keeps its row; a new one gets the mean of the rows of the old pieces that spell it;
a special token gets the row of the old one in its role; the rest get the mean of all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from tokenization import MaskOrigin, Tokenizer
from tokenization.pieces import Pieces
from toolkit.core.errors import CheckpointError
from toolkit.core.text import counted
from toolkit.model.config import padded_vocabulary

_ROWS = 8192
# In order of precedence: one token often has several roles, of which ending a text comes first.
_SAME_ROLES = {
    "eos": ("eos", "sep"),
    "bos": ("bos", "cls"),
    "sep": ("sep", "eos"),
    "cls": ("cls", "bos"),
    "mask": ("mask",),
    "unk": ("unk",),
    "pad": ("pad",),
}
"""Old roles that can supply the row of each new role: BERT's `[CLS]` and `[SEP]` begin and end a text."""


@dataclass(frozen=True)
class VocabularyChange:
    """Old rows that are averaged into each new row; made by `change_vocabulary`."""

    sources: tuple[tuple[int, ...], ...]
    """Old ids, by new id; empty if the row is the mean of all, as for padding after the new vocabulary."""
    num_old_tokens: int
    """Number of old ids with a row of their own; padding comes after them."""
    kept: tuple[int, ...]
    """New ids of pieces that both tokenizers have, ascending, without special tokens."""
    special: tuple[int, ...]
    """New ids of special tokens that get the row of an old special token."""

    @cached_property
    def shared(self) -> tuple[Tensor, Tensor]:
        """Ids of the shared pieces, in the old vocabulary and in the new."""
        return torch.tensor([self.sources[new][0] for new in self.kept]), torch.tensor(self.kept)

    def rows(self, old: Tensor) -> Iterator[Tensor]:
        """The new matrix in blocks of rows; `old` is (old V, D)."""
        mean = old[: self.num_old_tokens].mean(0, dtype=torch.float64).float()
        for first in range(0, len(self.sources), _ROWS):
            bags = self.sources[first : first + _ROWS]
            lengths = torch.tensor([len(bag) for bag in bags])
            flat = torch.tensor([token_id for bag in bags for token_id in bag], dtype=torch.int64)
            block = nn.functional.embedding_bag(flat, old, lengths.cumsum(0) - lengths, mode="mean")
            block[lengths == 0] = mean
            yield block

    def describe(self) -> str:
        """Numbers of rows by origin, in one clause."""
        others = {*self.kept, *self.special}
        averaged = [bag for new, bag in enumerate(self.sources) if bag and new not in others]
        each = f" over {sum(map(len, averaged)) / len(averaged):.1f} old pieces each" if averaged else ""
        return (
            f"{len(self.kept):,} kept, {len(averaged):,} averaged{each}, {len(self.special):,} by role or name, "
            f"{self.sources.count(()):,} the mean of all"
        )


def change_vocabulary(old: Tokenizer, new: Tokenizer) -> VocabularyChange:
    """Find the source of each row of a new vocabulary; raise `CheckpointError` if the two share no piece.

    The row of the old mask is used only if the old tokenizer's files name one.
    """
    theirs, ours = Pieces(old), Pieces(new)
    sources: list[tuple[int, ...]] = [()] * padded_vocabulary(new.vocabulary_size)
    kept = []
    for token_id, piece in ours.by_id.items():
        same = theirs.find(piece)
        if same is not None:
            kept.append(token_id)
        sources[token_id] = tuple(theirs.spell(piece.content)) if same is None else (same,)
    special = _special_sources(old, new, sources)
    if not kept:
        raise CheckpointError(
            f"the tokenizer asked for has none of the {counted(len(theirs.by_id), 'piece')} of the model's own "
            "vocabulary. Give one for the same script."
        )
    return VocabularyChange(tuple(sources), old.encoded_vocabulary_size, tuple(sorted(kept)), tuple(special))


def _special_sources(old: Tokenizer, new: Tokenizer, sources: list[tuple[int, ...]]) -> list[int]:
    """Fill in the sources of special tokens, by role, else by name; return the ids that have one, ascending."""
    roles = dict(old.role_ids)
    if old.mask.origin is not MaskOrigin.NAMED:
        del roles["mask"]
    texts = {token_id: old.backend.id_to_token(token_id) for token_id in old.all_special_ids}
    # An appended mask has no name there, and no row.
    names = {text: token_id for token_id, text in texts.items() if text is not None}
    found = {}
    for token_id in new.all_special_ids:
        same = names.get(new.backend.id_to_token(token_id) or "")
        if same is not None:
            found[token_id] = same
    for role, old_roles in reversed(_SAME_ROLES.items()):
        same = next((roles[old_role] for old_role in old_roles if old_role in roles), None)
        if role in new.role_ids and same is not None:
            found[new.role_ids[role]] = same
    for token_id, same in found.items():
        sources[token_id] = (same,)
    return sorted(found)
