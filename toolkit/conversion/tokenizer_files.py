"""Tokenizer files of an exported folder: the checkpoint's, with the model's length and the ids around a text."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenization.backend import framing_post_processor
from tokenization.tokenizer import ENCODING_FILE
from toolkit.checkpoint.read import Checkpoint
from toolkit.conversion.forms import ExportForm, exported_pad_id

if TYPE_CHECKING:
    import tokenizers


def write_tokenizer(folder: Path, source: Checkpoint, *, form: ExportForm, longest: int) -> None:
    """Copy the tokenizer into `folder` and set what the model needs.

    - Llama and EuroBERT take no token types; a text may be as long as the model's positions.
    - Where the tokenizer names no pad token, the token of `exported_pad_id` is named, since a batch could not be padded
      otherwise.
    - For an encoder, a text ends as documents did in training: with the end-of-text token, unless the tokenizer adds
      a token behind a text already or documents had no end (--no-eod). A decoder continues a text: nothing is added.
    - For an encoder, the mask takes the blank before it along where blanks belong to the word behind them: in training
      it stood for the whole token, blank included.
    """
    shutil.copytree(source.tokenizer_folder, folder, dirs_exist_ok=True)
    path, vocabulary = folder / "tokenizer_config.json", source.manifest.vocabulary
    changes: dict[str, object] = {
        "model_max_length": longest,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = read_json(path)
    pad_id = exported_pad_id(vocabulary.vocabulary())
    if config.get("pad_token") is None and pad_id is not None:
        changes["pad_token"] = backend.id_to_token(pad_id)
    if isinstance(extra := config.pop("extra_special_tokens", None), list):
        # As the toolkit wrote them before; transformers 4 takes no list under this name.
        changes["additional_special_tokens"] = extra
    write_json(path, config | changes)
    # `True` in checkpoints of corpora that do not say.
    ends_documents = read_json(folder / ENCODING_FILE).get("add_eod", True)
    (folder / ENCODING_FILE).unlink(missing_ok=True)
    if form is ExportForm.BIDIRECTIONAL:
        if vocabulary.mask_id is not None:
            _strip_before_mask(folder / "tokenizer.json", backend, vocabulary.mask_id)
        if vocabulary.eos_id is not None and ends_documents:
            _set_end(folder / "tokenizer.json", backend, vocabulary.eos_id)


def _strip_before_mask(path: Path, backend: "tokenizers.Tokenizer", mask_id: int) -> None:
    """Let the mask take a blank before it along, where that blank would be a token of its own."""
    mask = backend.id_to_token(mask_id)
    apart, joined = (len(backend.encode(f"a{gap}{mask}", add_special_tokens=False).ids) for gap in (" ", ""))
    if apart > joined:
        added: Any = read_json(path).get("added_tokens") or []
        changed = [token | {"lstrip": True} if token["id"] == mask_id else token for token in added]
        update_json(path, {"added_tokens": changed})


def _set_end(path: Path, backend: "tokenizers.Tokenizer", eos_id: int) -> None:
    """Give a tokenizer that puts nothing behind a text a template that ends each text with a token."""
    encoding = backend.encode("a")
    ids, is_special = encoding.ids, encoding.special_tokens_mask
    if not ids or is_special[-1] or 0 not in is_special:
        return
    front = ids[: is_special.index(0)]
    update_json(path, {"post_processor": framing_post_processor(backend, front=front, back=[eos_id])})


def update_json(path: Path, changes: dict[str, object]) -> None:
    """Change keys of a JSON file, or create it."""
    write_json(path, read_json(path) | changes)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file, indented."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, object]:
    """What a JSON file holds; nothing where there is none."""
    content: dict[str, object] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content
