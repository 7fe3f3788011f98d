"""The tokenizer of a model that is imported: which tokens begin, end, pad and hide, and what was decided about them."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import tokenization
from tokenization import Tokenizer
from toolkit.conversion.families import Described

__all__ = ["open_tokenizer"]

_CONFIG = "tokenizer_config.json"
_OURS = {"mean": "append"}


def open_tokenizer(folder: Path, described: Described, *, mask_token: str) -> tuple[Tokenizer, list[str]]:
    """Load the tokenizer of a model's folder.

    The tokens that the tokenizer's files name rule. Where they name none to begin or end a text, the one whose id
    config.json gives does, so that exports and corpora know it.

    Args:
        folder: of the model.
        described: the model's configuration.
        mask_token: the policy, as `from_hf` takes it.

    Returns:
        The tokenizer, and what was decided, one sentence each.

    Raises:
        tokenization.TokenizationError: it cannot be read, or the mask token asked for does not exist.
    """
    policy = _OURS.get(mask_token, mask_token)
    tokenizer = tokenization.load(folder, mask_token=policy)
    said = []
    config_ids = {"bos": described.bos_id, "eos": described.eos_ids[0] if described.eos_ids else None}
    texts = _texts(tokenizer)
    missing = {
        role: texts[token_id]
        for role, token_id in config_ids.items()
        if token_id in texts and tokenizer.special_ids[role] is None
    }
    if missing and (folder / "tokenizer.json").is_file():
        tokenizer = _with_names(folder, missing, policy)
        said += [f"{role}: {text} (id {config_ids[role]}), which config.json gives" for role, text in missing.items()]
    for role in ("bos", "eos"):
        said += _differences(role, tokenizer, described)
    mask = tokenizer.mask
    said.append(f"mask: {mask.text} (id {mask.id:,}), {mask.origin}")
    if mask.passed_over is not None:
        said.append(f"{mask.passed_over} looks like a mask and no file names it: --mask-token token:{mask.passed_over}")
    if tokenizer.special_ids["pad"] is None:
        said.append("pad: none is named; the end of text fills up, told apart by position and not by id")
    if (end := _own_end(tokenizer)) is not None:
        said.append(f"the tokenizer ends every text with {end} itself: preprocess with --no-eod, or it stands twice")
    return tokenizer, said


def _texts(tokenizer: Tokenizer) -> dict[int, str]:
    return {token_id: text for text, token_id in tokenizer.backend.get_vocab(with_added_tokens=True).items()}


def _with_names(folder: Path, names: dict[str, str], policy: str) -> Tokenizer:
    """The tokenizer of a folder whose files would name these tokens too."""
    with TemporaryDirectory(prefix="toolkit-tokenizer-") as place:
        for file in ("tokenizer.json", _CONFIG, "special_tokens_map.json"):
            if (folder / file).is_file():
                shutil.copy(folder / file, place)
        path = Path(place) / _CONFIG
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        path.write_text(json.dumps(config | {f"{role}_token": text for role, text in names.items()}), encoding="utf-8")
        return tokenization.load(Path(place), mask_token=policy)


def _differences(role: str, tokenizer: Tokenizer, described: Described) -> list[str]:
    """Where config.json and the tokenizer name different tokens; the tokenizer made the model's texts."""
    theirs = described.eos_ids if role == "eos" else () if described.bos_id is None else (described.bos_id,)
    ours = tokenizer.special_ids[role]
    if ours is None or not theirs or theirs == (ours,):
        return []
    listed = ", ".join(str(token_id) for token_id in theirs)
    return [f"{role}: id {ours}, as the tokenizer names it; config.json says {listed}"]


def _own_end(tokenizer: Tokenizer) -> str | None:
    """The text of the token that the tokenizer itself puts behind every text, if any."""
    encoding = tokenizer.backend.encode("a")
    is_special = encoding.special_tokens_mask
    return str(encoding.tokens[-1]) if is_special and is_special[-1] and len(is_special) > 1 else None
