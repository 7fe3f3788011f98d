import os
from collections.abc import Iterator

import pytest

# No test reaches the hub: one that needs a hub starts its own on the loopback, which the offline mode would refuse.
# Set before anything imports the client, which reads both when it is imported; child processes inherit them.
os.environ.pop("HF_HUB_OFFLINE", None)
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither find nor leave anything in the user's cache; child processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache-home")))
        yield
