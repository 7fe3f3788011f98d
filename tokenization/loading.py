"""Loading of a tokenizer from a file, a folder, a spec or a hub repository."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from tokenization.backend import declare_added
from tokenization.errors import TokenizationError, UnsupportedTokenizerError
from tokenization.formats.huggingface import (
    MERGES_FILE,
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    backend_from_json,
    backend_from_pair,
    read_content,
)
from tokenization.frame import read_source
from tokenization.reference import EncodingRules, TokenizerKind, TokenizerParts, release_freed_memory
from tokenization.special_tokens import CONFIGURATION_FILES, SpecialNames, read_added_tokens, read_special_names
from tokenization.specs import DEFAULT_SCHEME, RankFile, RankSpec, read_spec, shipped_names, shipped_spec
from tokenization.tokenizer import Tokenizer

_PAIR, _WORDPIECE = (VOCABULARY_FILE, MERGES_FILE), "vocab.txt"
_MODEL_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
_GIVE_LOCAL = "give a folder or file (there is no file, folder or shipped spec of that name here)"
_LIKE_A_PATH = re.compile(r"[./~\\]|.*\.(json|model|tiktoken|toml|txt)$|.*/.*/|.*\\")


def load(
    spec: str | Path,
    *,
    mask_token: str = "auto",
    eod: str | None = None,
    rules: EncodingRules | None = None,
    cache_folder: Path | None = None,
) -> Tokenizer:
    """Load a tokenizer and decide its special tokens.

    A file's content decides its kind, except for known names: `.toml`, `.json`, `merges.txt`. Names of special tokens
    come from `tokenizer_config.json` and `special_tokens_map.json` beside a Hugging Face vocabulary, from the spec of a
    tiktoken rank file, or from a SentencePiece model itself; they are never guessed.

    Args:
        spec: a folder or file with a Hugging Face `tokenizer.json`; a folder with GPT-2's `vocab.json` and
            `merges.txt`; a tiktoken rank file (Llama-3 scheme); a spec file `.toml` that names a rank file; a
            SentencePiece model; the name of a shipped spec; or a hub repository, `organization/name` or
            `organization/name@revision`.
        mask_token: `auto` (the named one, else the first reserved slot, else one appended id), `reserved`, `append`,
            `token:TEXT` or `id:N`.
        eod: text of the token that ends a document; by default the eos token, else the sep token. It becomes the eos
            token if the tokenizer names none.
        rules: how texts are encoded; by default as usual for the tokenizer's kind.
        cache_folder: cache of converted rank files and SentencePiece models, whose conversion takes seconds; by
            default they are converted each time.

    Raises:
        TokenizationError: nothing is there, it cannot be read, or a requested token does not exist.
        UnsupportedTokenizerError: this kind of tokenizer is not supported.
    """
    parts = _read(spec, cache_folder)
    # Reading a large vocabulary takes several times the memory that it needs afterwards.
    release_freed_memory()
    return Tokenizer(parts, mask_token=mask_token, eod=eod, rules=rules or EncodingRules())


def _read(spec: str | Path, cache: Path | None) -> TokenizerParts:
    path, name = Path(spec), str(spec)
    if not name:
        raise TokenizationError(
            "the name of the tokenizer is an empty string. Give a folder, a file or a hub repository."
        )
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except ValueError:  # a zero byte
        is_file = is_folder = False
    if is_file:
        return _from_file(path, cache)
    if is_folder:
        return _from_folder(path, cache)
    if name in shipped_names():
        return _from_spec(shipped_spec(name), cache)
    from tokenization.hub import HubName, download

    hub_name = HubName.parse(name) if isinstance(spec, str) else None
    if hub_name is not None and not _LIKE_A_PATH.match(hub_name.repository):
        files = [TOKENIZER_FILE, *_PAIR, *_MODEL_FILES, *CONFIGURATION_FILES]
        folder = download(hub_name, files, what="tokenizer", alternative=_GIVE_LOCAL)
        return replace(_from_folder(folder, cache, name), source=f"{hub_name.repository}@{folder.name}")
    raise TokenizationError(
        f"no tokenizer at {name!r}: no such file or folder. Give one, a hub repository, or one of the shipped "
        f"specs: {', '.join(shipped_names())}."
    )


def _from_folder(folder: Path, cache: Path | None, repository: str | None = None) -> TokenizerParts:
    if (folder / TOKENIZER_FILE).is_file():
        return _from_json(folder / TOKENIZER_FILE)
    # A model that `toolkit convert --from-hf` wrote, or a checkpoint, has its tokenizer in a subfolder.
    if (folder / "tokenizer" / TOKENIZER_FILE).is_file():
        return _from_folder(folder / "tokenizer", cache)
    if all((folder / name).is_file() for name in _PAIR):
        names = read_special_names(folder)
        backend, entries = backend_from_pair(folder), read_added_tokens(folder, names)
        declare_added(backend, entries, folder)
        digest = _digest(*(read_content(folder / name) for name in _PAIR), entries)
        return TokenizerParts(backend, names, digest=digest, folder=folder)
    models = [folder / name for name in _MODEL_FILES if (folder / name).is_file()]
    if len(models) == 1:
        return _with_configuration(_from_file(models[0], cache), folder)
    if not models and (folder / _WORDPIECE).is_file():
        return _from_file(folder / _WORDPIECE, cache)
    known = f"no {TOKENIZER_FILE}, no {VOCABULARY_FILE} with {MERGES_FILE} and no single model file"
    if repository is not None:
        raise TokenizationError(f"the hub repository {repository!r} has {known}. Give another one, or a file.")
    held = sorted(entry.name for entry in folder.iterdir())
    listed = ", ".join(held[:8]) + (", ..." if len(held) > 8 else "") if held else "nothing"
    raise TokenizationError(
        f"the folder {folder} has {known}; it holds: {listed}. Name the file itself, or another folder."
    )


def _from_json(path: Path) -> TokenizerParts:
    content = read_content(path)
    backend, digest = backend_from_json(content, path), _digest(content)
    if path.name != TOKENIZER_FILE:
        return TokenizerParts(backend, SpecialNames(), digest=digest)
    folder = path.parent
    return TokenizerParts(backend, read_special_names(folder), digest=digest, folder=folder, source=read_source(folder))


def _with_configuration(parts: TokenizerParts, folder: Path) -> TokenizerParts:
    """Add to a SentencePiece model the names and tokens from the files beside it.

    All added tokens are special: SentencePiece itself, whose ids are the reference, reads their strings as plain text.
    """
    if parts.reference is None or parts.reference.kind is not TokenizerKind.SENTENCEPIECE:
        return parts
    names = read_special_names(folder)
    entries = [replace(entry, special=True, normalized=False) for entry in read_added_tokens(folder, names)]
    declare_added(parts.backend, entries, folder)
    vocabulary = parts.backend.get_vocab(with_added_tokens=True)
    # Extra names without an id in any file are dropped: their ids would differ from class to class.
    extra = tuple(text for text in (*parts.names.extra, *names.extra) if text in vocabulary)
    return replace(
        parts,
        names=SpecialNames({**parts.names.roles, **names.roles}, extra),
        digest=_digest(parts.digest, entries),
        content=None,
        folder=folder,
    )


def _digest(*decisive: object) -> str:
    parts = (hashlib.sha256(part).digest() if isinstance(part, bytes) else part for part in decisive)
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()


def _from_file(path: Path, cache: Path | None) -> TokenizerParts:
    from tokenization.formats.sentencepiece_model import looks_like_model
    from tokenization.formats.tiktoken_ranks import looks_like_ranks

    content = read_content(path)
    if path.suffix == ".toml":
        return _from_spec(read_spec(path), cache)
    if looks_like_ranks(content[:4096]):
        return _from_ranks(content, str(path), shipped_spec(DEFAULT_SCHEME), cache)
    if path.name in _PAIR and all((path.parent / name).is_file() for name in _PAIR):
        return _from_folder(path.parent, cache)
    if content.lstrip()[:1] == b"{" or path.suffix == ".json":
        return _from_json(path)
    if looks_like_model(content):
        from tokenization.formats.sentencepiece_form import from_sentencepiece

        form, names, pieces = from_sentencepiece(content, str(path), cache_folder=cache)
        return TokenizerParts(form.backend, names, digest=_digest(content), content=form.content, reference=pieces)
    if path.name == _WORDPIECE:
        raise UnsupportedTokenizerError(
            f"{path} lists the tokens of a WordPiece vocabulary and does not say how text is normalized before it is "
            f"cut. Give the {TOKENIZER_FILE} that belongs to it; where tokenizer_config.json is beside it, "
            f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained(NEW_FOLDER) writes one."
        )
    raise TokenizationError(
        f"{path} is not a known tokenizer format: neither a Hugging Face {TOKENIZER_FILE}, a tiktoken rank file, a "
        f"SentencePiece model nor a spec .toml. It begins with {str(content[:20])[1:]}. Give one of these."
    )


def _from_spec(spec: RankSpec, cache: Path | None) -> TokenizerParts:
    if spec.ranks is None:
        raise TokenizationError(f'The tokenizer spec {spec.name} names no rank file: add ranks = "FILE".')
    content, name = _rank_file(spec.ranks, spec.name)
    return _from_ranks(content, name, spec, cache)


def _from_ranks(content: bytes, name: str, spec: RankSpec, cache: Path | None) -> TokenizerParts:
    from tokenization.formats.tiktoken_ranks import from_ranks

    form, reference = from_ranks(content, name, spec, cache_folder=cache)
    digest = _digest(content, spec.pattern, spec.special_tokens, spec.reserved)
    names = SpecialNames(spec.roles)
    return TokenizerParts(form.backend, names, digest=digest, content=form.content, reference=reference)


def _rank_file(ranks: RankFile, spec_name: str) -> tuple[bytes, str]:
    """Content and name of the rank file that a spec names."""
    if ranks.path is not None:
        return read_content(ranks.path), str(ranks.path)
    if ranks.hub is not None and ranks.file is not None:
        content, name = _from_hub(ranks.hub, ranks.file, spec_name), f"{ranks.hub}/{ranks.file}"
    else:
        assert ranks.url is not None
        content, name = _from_url(ranks.url, ranks.sha256), ranks.url
    if ranks.sha256 is not None and hashlib.sha256(content).hexdigest() != ranks.sha256:
        raise TokenizationError(
            f"{name} is not the rank file that the tokenizer spec {spec_name} means: its hash differs. "
            "Download it again."
        )
    return content, name


def _from_hub(repository: str, file: str, spec_name: str) -> bytes:
    from tokenization.hub import HubName, download

    how = f'give the rank file itself, or a spec .toml with scheme = "{spec_name}" and ranks = "FILE"'
    path = download(HubName(repository), [file], what="rank file in", alternative=how) / file
    if not path.is_file():
        raise TokenizationError(f"the hub repository {repository!r} has no {file}: {how}.")
    return read_content(path)


def _from_url(url: str, sha256: str | None) -> bytes:
    from tiktoken.load import read_file_cached

    try:
        return bytes(read_file_cached(url, sha256))
    except Exception as error:  # whatever its HTTP library raises
        lines = str(error).strip().splitlines()
        raise TokenizationError(
            f"could not download the rank file {url}: {lines[0] if lines else type(error).__name__}. tiktoken keeps "
            'files in TIKTOKEN_CACHE_DIR; if you have the file, name it in a spec .toml of your own (ranks = "FILE").'
        ) from error
