import platform
import subprocess
import sys

import pytest


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switches are glibc's")
@pytest.mark.parametrize("switch", ["keep_freed_memory", "give_back_freed_memory"])
def test_the_allocator_can_be_set(switch: str) -> None:
    """In a process of its own: it cannot be unset."""
    code = f"from toolkit.core.allocator import {switch}; print({switch}())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
