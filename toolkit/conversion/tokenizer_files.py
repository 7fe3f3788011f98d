"""The tokenizer of an exported folder: the checkpoint's, told what the model is and what it saw around a text."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.checkpoint.read import Checkpoint
from toolkit.conversion.forms import ExportForm

if TYPE_CHECKING:
    import tokenizers


def write_tokenizer(folder: Path, source: Checkpoint, *, form: ExportForm, longest: int) -> None:
    """Copy the tokenizer into `folder` and settle what the model asks for.

    - Llama and EuroBERT take no token types; a text may be as long as the model's positions.
    - Where the tokenizer names no pad token, the model's pad id is one of its other tokens; that one is named, since a
      batch could not be padded otherwise.
    - For an encoder, a text ends as documents did in training: with the end-of-text token, where the tokenizer adds
      nothing behind a text. A decoder goes on writing, so nothing is added there.
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
    if read_json(path).get("pad_token") is None:
        changes["pad_token"] = backend.id_to_token(vocabulary.pad_id)
    update_json(path, changes)
    if form is ExportForm.BIDIRECTIONAL:
        if vocabulary.mask_id is not None:
            _strip_before_mask(folder / "tokenizer.json", backend, vocabulary.mask_id)
        if vocabulary.eos_id is not None:
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
    front, tokens = ids[: is_special.index(0)], {}

    def special(token_id: int) -> dict[str, object]:
        text = str(backend.id_to_token(token_id))
        tokens[text] = {"id": text, "ids": [token_id], "tokens": [text]}
        return {"SpecialToken": {"id": text, "type_id": 0}}

    def text(name: str) -> dict[str, object]:
        return {"Sequence": {"id": name, "type_id": 0}}

    single = [*map(special, front), text("A"), special(eos_id)]
    pair = [*single, text("B"), special(eos_id)]
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}
    before: Any = read_json(path).get("post_processor") or {}
    # What a byte-level processor does is about places in the text, not about ids.
    kept = [part for part in before.get("processors", [before]) if part.get("type") == "ByteLevel"]
    update_json(path, {"post_processor": {"type": "Sequence", "processors": [*kept, template]} if kept else template})


def update_json(path: Path, changes: dict[str, object]) -> None:
    """Change keys of a JSON file, or begin one."""
    path.write_text(json.dumps(read_json(path) | changes, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, object]:
    """What a JSON file holds; nothing where there is none."""
    content: dict[str, object] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content
