"""The ids around a text: how a post-processor shows them, and how earlier versions recorded them."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from tests.support.text import tiny_tokenizer
from tokenization.frame import Frame, post_processor_frame, read_document_frame

NAMED = [("<|endoftext|>", 0), ("<|pad|>", 1)]


def _backend(folder: Path, template: str | None) -> Tokenizer:
    backend = Tokenizer.from_file(str(tiny_tokenizer(folder) / "tokenizer.json"))
    if template is not None:
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=NAMED)
    return backend


@pytest.mark.parametrize(
    ("template", "frame"),
    [
        (None, Frame()),
        ("$A", Frame()),
        ("<|pad|> $A", Frame((1,))),
        ("<|pad|> <|endoftext|> $A <|endoftext|>", Frame((1, 0), (0,))),
    ],
)
def test_what_a_post_processor_puts_around_a_text(tmp_path: Path, template: str | None, frame: Frame) -> None:
    assert post_processor_frame(_backend(tmp_path, template)) == frame


@pytest.mark.parametrize(
    ("template", "recorded", "frame"),
    [
        ("<|pad|> $A", {"frame": {"front": [], "back": [1, 0]}, "add_eod": True}, Frame((), (1, 0))),
        ("<|pad|> $A", {"add_eod": True}, Frame((1,), (0,))),
        ("<|pad|> $A", {"add_eod": False}, Frame((1,))),
        ("<|pad|> $A", None, Frame((1,), (0,))),
        ("$A <|pad|>", {"add_eod": True}, Frame((), (1,))),
    ],
)
def test_earlier_versions_said_whether_an_end_was_appended(
    tmp_path: Path, template: str, recorded: dict[str, object] | None, frame: Frame
) -> None:
    backend = _backend(tmp_path / "tokenizer", template)
    if recorded is not None:
        (tmp_path / "encoding.json").write_text(json.dumps(recorded))
    assert read_document_frame(tmp_path, backend, eos_id=0) == frame
