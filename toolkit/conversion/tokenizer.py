"""Tokenizer of an imported model, with notes on its special tokens."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import tokenization
from tokenization import EncodingRules, MaskOrigin, Tokenizer
from tokenization.comparison import transformers_differences
from tokenization.special_tokens import CONFIGURATION_FILES
from toolkit.conversion.families import Described
from toolkit.core.errors import UserError
from toolkit.model_folder import read_json, write_json

_CONFIG = "tokenizer_config.json"
_JSON, _PAIR = "tokenizer.json", ("vocab.json", "merges.txt")
# An import has no documents: texts are encoded as by the tokenizer itself, until a corpus says more.
_RULES = EncodingRules(add_eod=False)
_POLICIES = {"auto": "auto", "reserved": "reserved", "mean": "append"}


def open_tokenizer(folder: Path, described: Described, *, mask_token: str) -> tuple[Tokenizer, list[str]]:
    """Load the tokenizer of a model's folder; also return the decisions, one sentence each.

    Tokens named in the tokenizer's files take precedence. If they name none to begin or end a text, the id in
    config.json is used, so that exports and corpora know it; the same goes for a mask under `auto`.
    """
    policy = _policy(mask_token)
    if not any(any(folder.glob(name)) for name in (_JSON, f"tokenizer/{_JSON}", "vocab.*", "*.model")):
        raise UserError(
            f"{folder} holds no tokenizer: neither {_JSON}, nor {' with '.join(_PAIR)}, nor a SentencePiece model.\n"
            "Write the one that the model was trained with beside it: "
            "AutoTokenizer.from_pretrained(ITS_MODEL).save_pretrained(FOLDER)."
        )
    tokenizer = tokenization.load(folder, mask_token=policy, rules=_RULES)
    said = []
    special = {token_id for token_id, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special}
    missing = _missing(tokenizer, described, special, policy)
    # A SentencePiece model names its own tokens.
    if not any((folder / name).is_file() for name in (_JSON, *_PAIR)):
        missing = {}
    if missing:
        texts = _texts(tokenizer)
        tokenizer = _with_names(folder, {role: texts[token_id] for role, token_id in missing.items()}, policy)
        said += [f"{role}: {texts[id_]} (id {id_:,}), which config.json gives" for role, id_ in missing.items()]
    for role in ("bos", "eos"):
        said += _differences(role, tokenizer, described)
    if "mask" not in missing:
        said.append(_mask_note(tokenizer))
    if "chat_template" in read_json(folder / _CONFIG) or (folder / "chat_template.jinja").is_file():
        said.append("the chat template is left out")
    return tokenizer, said + _notes(tokenizer)


def open_other_tokenizer(spec: Path | str, *, mask_token: str) -> tuple[Tokenizer, list[str]]:
    """Load a tokenizer that is not the model's own, of any kind that `toolkit preprocess` takes, with notes."""
    tokenizer = tokenization.load(spec, mask_token=_policy(mask_token), rules=_RULES)
    return tokenizer, [_mask_note(tokenizer), *_notes(tokenizer)]


def _mask_note(tokenizer: Tokenizer) -> str:
    mask = tokenizer.mask
    return f"mask: {mask.text} (id {mask.id:,}), {mask.origin}"


def _notes(tokenizer: Tokenizer) -> list[str]:
    said, mask = [], tokenizer.mask
    if tokenizer.is_mask_ordinary:
        said.append(
            f"{mask.text} is an ordinary token: exported tokenizers read every {mask.text} in a text as the mask"
        )
    if mask.passed_over is not None:
        said.append(f"{mask.passed_over} looks like a mask and no file names it: --mask-token token:{mask.passed_over}")
    if tokenizer.special_ids["pad"] is None:
        said.append("pad: none is named; the end of text fills up, told apart by position and not by id")
    if back := tokenizer.own_frame.back:
        said.append(f"the tokenizer itself ends every text with {tokenizer.backend.id_to_token(back[-1])}")
    return said


def _policy(mask_token: str) -> str:
    if mask_token in _POLICIES or mask_token.startswith(("id:", "token:")):
        return _POLICIES.get(mask_token, mask_token)
    raise UserError(
        f"invalid value for --mask-token: expected {', '.join(_POLICIES)}, id:N or token:TEXT, got {mask_token!r}."
    )


def compare_ids(folder: Path, ours: Path) -> list[str]:
    """One note per kind of difference between the ids that transformers gets from a folder's tokenizer and ours."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(ours, local_files_only=True, trust_remote_code=False)
    differences = transformers_differences(
        folder, encode=lambda text: loaded(text, verbose=False)["input_ids"], ids=loaded.get_vocab()
    )
    return [f"tokenizer: {difference}" for difference in differences]


def _missing(tokenizer: Tokenizer, described: Described, special: set[int], policy: str) -> dict[str, int]:
    """Token ids, by role, that config.json gives but no file of the tokenizer names."""
    ids = _texts(tokenizer).keys()
    given = {"bos": described.bos_id, "eos": described.eos_ids[0] if described.eos_ids else None}
    missing = {
        role: token_id
        for role, token_id in given.items()
        if token_id is not None and token_id in ids and tokenizer.special_ids[role] is None
    }
    is_open = policy == "auto" and tokenizer.mask.origin is not MaskOrigin.NAMED
    if is_open and described.mask_id is not None and described.mask_id in special:
        missing["mask"] = described.mask_id
    return missing


def _texts(tokenizer: Tokenizer) -> dict[int, str]:
    return {token_id: text for text, token_id in tokenizer.backend.get_vocab(with_added_tokens=True).items()}


def _with_names(folder: Path, names: dict[str, str], policy: str) -> Tokenizer:
    """Load a folder's tokenizer as if its files also named these tokens."""
    with TemporaryDirectory(prefix="toolkit-tokenizer-") as place:
        for file in (_JSON, *_PAIR, *CONFIGURATION_FILES):
            if (folder / file).is_file():
                shutil.copy(folder / file, place)
        named = {f"{role}_token": text for role, text in names.items()}
        write_json(Path(place) / _CONFIG, read_json(Path(place) / _CONFIG) | named)
        return tokenization.load(Path(place), mask_token=policy, rules=_RULES)


def _differences(role: str, tokenizer: Tokenizer, described: Described) -> list[str]:
    """Notes if config.json and the tokenizer differ for a role; the tokenizer wins: it encoded the model's texts."""
    theirs = described.eos_ids if role == "eos" else () if described.bos_id is None else (described.bos_id,)
    ours = tokenizer.special_ids[role]
    found = []
    if ours is not None and theirs and theirs != (ours,):
        listed = ", ".join(map(str, theirs))
        found.append(f"{role}: id {ours}, as the tokenizer names it; config.json says {listed}")
    more = [end for end in described.generation_ends if end not in (ours, *theirs)] if role == "eos" else []
    if more:
        listed = ", ".join(map(str, more))
        found.append(f"eos: generation_config.json also ends texts with id {listed}, which exports do not know")
    return found


def preprocess_options(tokenizer: Tokenizer) -> str:
    """Extra options that `toolkit preprocess` needs with this tokenizer, each with a space in front."""
    if tokenizer.eod_id is not None:
        return ""
    return " --no-eod" if tokenizer.own_frame.back else " --eod TOKEN"
