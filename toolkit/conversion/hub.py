"""Where the files of a model are: a folder here, or a snapshot of one on the hub."""

import re
from pathlib import Path

from toolkit.core.errors import UserError
from toolkit.core.text import home_hint

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "*.model",
]


def local_files(model: str) -> Path:
    """The folder of a model; from the hub, its configuration, tokenizer and safetensors are fetched first.

    Raises:
        UserError: there is no such folder, and no such model can be fetched.
    """
    path = Path(model)
    if model and path.is_dir():
        return path
    if not _HUB_ID.fullmatch(model) or path.exists():
        raise _no_model(model)
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=_FILES))
    except GatedRepoError as error:
        raise UserError(
            f"{model} is gated on the hub. Accept its terms on {constants.ENDPOINT}/{model} with your account, and set "
            "HF_TOKEN to a token of it (or `hf auth login`)."
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"There is no folder {model} here, and no model {model} on the hub that you may read.\n"
            "Look the id up on the hub; for a private model set HF_TOKEN."
        ) from error
    except HFValidationError as error:
        raise _no_model(model) from error
    except Exception as error:  # the HTTP library under the client has a family of its own
        raise UserError(
            f"There is no folder {model} here; {_why(error)}.\n"
            "Check the connection (HF_HUB_OFFLINE, HF_ENDPOINT), or give a folder with the model's files."
        ) from error


def _no_model(name: str) -> UserError:
    return UserError(
        f"{name!r} is no folder, and no id of a model on the hub (OWNER/NAME).{home_hint(name)}\n"
        "Give a folder that holds config.json, model.safetensors and a tokenizer, or such an id."
    )


def _why(error: Exception) -> str:
    """What kept the hub from giving a model."""
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        # The error's own text holds the address, which may be signed for a while: a secret.
        return f"{constants.ENDPOINT} answered {status}"
    if not isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
        return f"fetching it from {constants.ENDPOINT} failed: {str(error).partition(chr(10))[0].rstrip('.')}"
    if constants.is_offline_mode():
        return f"the model is not in the cache ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE is set"
    return f"the model is not in the cache ({constants.HF_HUB_CACHE}), and {constants.ENDPOINT} cannot be reached"
