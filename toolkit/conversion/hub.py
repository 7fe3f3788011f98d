"""Model files: a local folder, or a snapshot of a model repository on the hub."""

from pathlib import Path

from tokenization.errors import TokenizationError
from tokenization.hub import HubName, download
from toolkit.core.errors import UserError
from toolkit.core.text import home_hint

_FILES = [
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

    Args:
        model: a folder, or `organization/name` or `organization/name@revision` on the hub.

    Raises:
        UserError: there is no such folder, and no such model can be downloaded.
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
