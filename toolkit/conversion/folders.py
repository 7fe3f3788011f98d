"""Folders of a conversion: the input model, local or from the hub, and the output, written atomically."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from tokenization.errors import TokenizationError
from tokenization.hub import HubName, download
from toolkit.core.errors import UserError, is_out_of_room
from toolkit.core.files import atomic_directory
from toolkit.core.text import home_hint

_FILES = [
    "README.md",
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "*.model",
]


def local_files(model: str) -> Path:
    """The folder of a model; from the hub, its configuration, tokenizer and safetensors are downloaded first.

    `model` is a folder, or `organization/name` or `organization/name@revision` on the hub.
    """
    path = Path(model)
    if model and path.is_dir():
        return path
    name = HubName.parse(model)
    if name is None or "/" not in name.repository or path.exists():
        raise UserError(
            f"{model!r} is not a directory, and not the name of a model on the hub "
            f"(organization/name or organization/name@revision).{home_hint(model)}\n"
            "Give a folder that holds config.json, model.safetensors and a tokenizer, or such a name."
        )
    try:
        return download(name, _FILES, what="model", alternative="give a folder with the model's files")
    except TokenizationError as error:
        raise UserError(f"no such directory: {model}; {error}") from error


def check_output(out: Path) -> None:
    """Raise if the destination exists already and is not an empty folder that another can replace."""
    if out.is_dir() and not any(out.iterdir()):
        kinds = {"a link": out.is_symlink(), "the working directory": out.samefile("."), "a mount": out.is_mount()}
        if kind := next((name for name, is_it in kinds.items() if is_it), None):
            raise UserError(f"{out} is {kind}, which a new folder cannot replace. Name a folder in it.")
        return
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} already exists. Name a new folder, or remove it first.")


@contextmanager
def output_directory(out: Path) -> Iterator[Path]:
    """A hidden folder that becomes `out` if the block succeeds, and is removed otherwise.

    System errors in the block become `UserError`s that name `out`.
    """
    try:
        with atomic_directory(out) as folder:
            yield folder
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "Free space there, or name another folder" if is_out_of_room(error) else "Name another folder"
        raise UserError(f"{out} cannot be written: {reason}. {remedy}; no partial output is left there.") from error
