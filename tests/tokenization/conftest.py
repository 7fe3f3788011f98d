import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, processors

from tests.support.text import sample_documents, tiny_tokenizer
from tokenization.backend import byte_level_bytes

MakeFolder = Callable[..., Path]
MakeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def make_folder(trained: Path, tmp_path: Path) -> MakeFolder:
    """A folder with the trained tokenizer.json, other configuration files and, if asked, changes to the backend."""

    def make(
        name: str = "made",
        *,
        config: object = None,
        special_map: object = None,
        bos: str | None = None,
        extra_tokens: tuple[str, ...] = (),
        change: Callable[[Tokenizer], None] | None = None,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        backend = Tokenizer.from_file(str(trained / "tokenizer.json"))
        backend.add_tokens(list(extra_tokens))
        if bos is not None:
            bos_id = backend.token_to_id(bos)
            backend.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, bos_id)]
            )
        if change is not None:
            change(backend)
        backend.save(str(folder / "tokenizer.json"))
        for content, file in ((config, "tokenizer_config.json"), (special_map, "special_tokens_map.json")):
            if content is not None:
                (folder / file).write_text(json.dumps(content), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def ranks_file(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The merges of the trained tokenizer as a tiktoken rank file: 256 bytes, then 125 joined tokens."""
    vocabulary = Tokenizer.from_file(str(trained / "tokenizer.json")).get_vocab()
    tokens = [byte_level_bytes(text) for text in sorted(vocabulary, key=vocabulary.__getitem__)[3:]]
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    path = tmp_path_factory.mktemp("ranks") / "small.ranks"
    path.write_text("".join(lines), encoding="ascii")
    return path


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """A SentencePiece model trained on the sample documents; each set of options once."""
    made: dict[str, Path] = {}

    def make(**options: object) -> Path:
        key = json.dumps(options, sort_keys=True)
        if key not in made:
            path = tmp_path_factory.mktemp("model") / "small.model"
            settings = {"vocab_size": 384 if options.get("byte_fallback") else 120, "hard_vocab_limit": False}
            with path.open("wb") as file:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=iter(sample_documents(200)),
                    model_writer=file,
                    minloglevel=2,
                    num_threads=1,
                    **{**settings, **options},
                )
            made[key] = path
        return made[key]

    return make
