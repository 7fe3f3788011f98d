"""Question and context as inputs: one if they fit, else overlapping windows that together cover the whole context."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from transformers import BatchEncoding

from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.inputs import Encoded, check_room, check_tells_offsets, input_row

AT_ONCE = 1000
"""Questions that are tokenized together."""


@dataclass(frozen=True, slots=True)
class Window:
    """An input with a question and a stretch of its context.

    Attributes:
        inputs: inputs of the network, S tokens.
        offsets: (S, 2), each token's characters in the context; -1 for tokens outside the context.
        null_position: the first special token, which stands for "no answer".
        begin: first character of the context that the window covers.
        end: first character after the covered ones.
    """

    inputs: Encoded
    offsets: npt.NDArray[np.int32]
    null_position: int
    begin: int
    end: int

    def span_of(self, begin: int, end: int) -> tuple[int, int] | None:
        """First and last token of a character range of the context; None if the window does not cover all of it."""
        if not self.begin <= begin < end <= self.end:
            return None
        touched = np.flatnonzero((self.offsets[:, 1] > begin) & (self.offsets[:, 0] < end))
        return (int(touched[0]), int(touched[-1])) if len(touched) else None


class WindowBuilder:
    """Splits contexts into windows, each tokenized as a pair with its question (see `framed_source`).

    Neighbours share `overlap` tokens, at most half of a window's part of the context. Questions that would take more
    than half of an input are truncated.
    """

    def __init__(self, source: EncoderSource, *, overlap: int) -> None:
        check_tells_offsets(source)
        self._source, self._tokenizer, self._overlap = source, source.tokenizer, overlap
        self._max_length, num_special = source.max_length, source.tokenizer.num_special_tokens_to_add(pair=True)
        check_room(self._max_length, num_special, num_texts=2)
        self._room = self._max_length - num_special
        self._special_ids = frozenset(source.tokenizer.all_special_ids)

    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> tuple[list[list[Window]], int]:
        """The windows of each pair, in order; also returns how many questions were truncated."""
        windows: list[list[Window]] = []
        num_cut = 0
        for start in range(0, len(questions), AT_ONCE):
            shortened, lengths, cut = self._shorten(questions[start : start + AT_ONCE])
            windows.extend(self._windows(shortened, lengths, contexts[start : start + AT_ONCE]))
            num_cut += cut
        return windows, num_cut

    def _shorten(self, questions: Sequence[str]) -> tuple[list[str], list[int], int]:
        """Questions truncated to half the room, their lengths in tokens, and how many were truncated."""
        encoded = self._tokenizer(list(questions), add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        longest, shortened, num_cut = max(1, self._room // 2), list(questions), 0
        lengths = [len(ids) for ids in encoded.input_ids]
        for number, offsets in enumerate(encoded.offset_mapping):
            # A prefix may have more tokens on its own than within the longer text: cut until it fits.
            cut = len(questions[number])
            keep = longest
            while lengths[number] > longest and keep > 0:
                cut, keep = offsets[keep - 1][1], keep - 1
                shortened[number] = questions[number][:cut]
                lengths[number] = len(self._tokenizer(shortened[number], add_special_tokens=False).input_ids)
            num_cut += cut < len(questions[number])
        return shortened, lengths, num_cut

    def _windows(self, questions: list[str], lengths: list[int], contexts: Sequence[str]) -> list[list[Window]]:
        groups = defaultdict(list)  # The tokenizer takes one overlap for all, and it may not exceed their room.
        for number, length in enumerate(lengths):
            groups[min(self._overlap, (self._room - length) // 2)].append(number)
        windows: list[list[Window]] = [[] for _ in questions]
        for overlap, numbers in groups.items():
            encoded = self._tokenizer(
                [questions[number] for number in numbers],
                [contexts[number] for number in numbers],
                truncation="only_second",
                max_length=self._max_length,
                stride=overlap,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
            )
            for row, owner in enumerate(encoded["overflow_to_sample_mapping"]):
                windows[numbers[owner]].append(self._window(encoded, row))
        return [list(_covering(group, len(context))) for group, context in zip(windows, contexts, strict=True)]

    def _window(self, encoded: BatchEncoding, row: int) -> Window:
        inputs = input_row(encoded, row, self._source)
        # A line break that a template puts between the texts is not a special token.
        is_special = zip(encoded["special_tokens_mask"][row], inputs["input_ids"], strict=True)
        special = (place for place, (added, token) in enumerate(is_special) if added and token in self._special_ids)
        return Window(inputs, context_offsets(encoded, row), next(special, 0), 0, 0)


def context_offsets(encoded: BatchEncoding, row: int, *, longest: int | None = None) -> npt.NDArray[np.int32]:
    """Characters of each token, cut to `longest`, in the second text, (S, 2); -1 for tokens outside it."""
    of_context = np.array([[text == 1] for text in encoded.sequence_ids(row)[:longest]])
    return np.where(of_context, np.array(encoded["offset_mapping"][row][:longest], np.int32), np.int32(-1))


def _covering(windows: list[Window], num_characters: int) -> Iterator[Window]:
    """The windows of one context, each with the characters it covers; blanks at a border belong to no token."""
    for index, window in enumerate(windows):
        inside = window.offsets[window.offsets[:, 1] > 0]
        begin = 0 if index == 0 else int(inside[0, 0])
        yield replace(window, begin=begin, end=num_characters if index == len(windows) - 1 else int(inside[-1, 1]))
