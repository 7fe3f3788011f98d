"""Comparison with transformers' `AutoTokenizer`, whose ids Megatron-LM and most tools use.

`AutoTokenizer` reads the configuration files beside a tokenizer, and some of its classes change what a `tokenizer.json`
or a SentencePiece model says: they add tokens around a text, or treat blanks otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tokenization.formats.conversion_check import PROBES
from tokenization.special_tokens import ROLES

TEXTS = ("Call me Ishmael.", " A text may begin with a blank.", *PROBES)
"""What is encoded by both."""


def transformers_differences(
    folder: Path, *, encode: Callable[[str], Sequence[int]], ids: Mapping[str, int]
) -> list[str]:
    """Compare a tokenizer with what `AutoTokenizer` makes of its folder.

    Args:
        folder: of the tokenizer, with its configuration files.
        encode: the ids of a text, post-processor included.
        ids: the id of each token.

    Returns:
        A sentence for each kind of difference; none if `AutoTokenizer` gives the same ids.
    """
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        # Not verbose: no model runs on these ids, however long the texts are.
        theirs = [list(loaded(text, verbose=False)["input_ids"]) for text in TEXTS]
    except Exception as error:  # a loader of another library may fail in any way
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        return [f"AutoTokenizer does not load it, so ids were not compared ({reason})"]
    found = []
    ours = [list(encode(text)) for text in TEXTS]
    differing = [number for number in range(len(TEXTS)) if ours[number] != theirs[number]]
    if differing:
        first = differing[0]
        found.append(
            f"AutoTokenizer gives other ids for {len(differing)} of {len(TEXTS)} texts, for example "
            f"{TEXTS[first][:40]!r}: {_shown(theirs[first])}, and here {_shown(ours[first])}. What it adds around a "
            "text or changes in it is not in the file that was read; "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) writes one that has it"
        )
    for role in ROLES:
        token = getattr(loaded, f"{role}_token", None)
        theirs_id = getattr(loaded, f"{role}_token_id", None)
        if token is not None and theirs_id is not None and ids.get(str(token), theirs_id) != theirs_id:
            found.append(
                f"AutoTokenizer gives the {role} token {token} the id {theirs_id}, and here it is {ids[token]}"
            )
    return found


def _shown(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:6]))}{', ...' if len(ids) > 6 else ''}]"
