import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from toolkit.testing.text import tiny_tokenizer

MakeFolder = Callable[..., Path]


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
