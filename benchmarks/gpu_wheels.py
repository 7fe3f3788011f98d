"""Everything that `benchmarks/gpu.py` needs, in one folder, for a GPU machine without network.

    python benchmarks/gpu_wheels.py FOLDER [--python 3.12] [--flash4]

Such a machine usually has torch, triton and transformers already, and those stay as they are. The folder gets wheels of
what is missing beside them: DeepSpeed (without its own kernels, of which none is used), the toolkit from this checkout,
and some small packages. `--flash4` adds FlashAttention 4 in a folder inside, which is larger than the rest together.
The last line that is printed installs them there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEEPSPEED = "deepspeed==0.19.8"
SMALL = (
    "filelock>=4.0",
    "hjson",
    "msgpack",
    "orjson>=3.10",
    "psutil>=5.9",
    "py-cpuinfo",
    "pydantic>=2.10",
    "tomli-w>=1.1",
)
"""Needed by the toolkit or by DeepSpeed, beside what comes with torch and transformers; with what they need."""
FLASH4 = "flash-attn-4[cu13]"
_WITH_TORCH = ("cuda-bindings", "cuda-pathfinder", "nvidia-cutlass-dsl-libs-cu12")
"""Needed by FlashAttention 4 too, and there with a torch for CUDA 13; or made for CUDA 12."""
_GLIBC = (17, 24, 26, 27, 28, 31, 34, 35)
_LARGEST = 64 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the GPU machine")
    parser.add_argument("--flash4", action="store_true", help="FlashAttention 4 too")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.whl")):
        parser.error(f"{folder} has wheels already, and one version of each is wanted. Give an empty folder.")
    download(folder, SMALL, python=given.python)
    build(folder)
    folders = [folder]
    if given.flash4:
        folders.append(folder / "flash4")
        download(folders[-1], ["--no-deps", *flash4_requirements()], python=given.python)
    for each in folders:
        size = sum(path.stat().st_size for path in each.glob("*.whl"))
        print(f"{each}: {len(list(each.glob('*.whl')))} wheels, {size / 2**20:.1f} MiB")
        if each == folder and size > _LARGEST:
            print(f"That is more than {_LARGEST >> 20} MiB.", file=sys.stderr)
            return 1
    print(f"python -m pip install --no-index --no-deps {' '.join(f'{each}/*.whl' for each in folders)}")
    return 0


def pip(*arguments: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], env=os.environ | environment, check=True)


def download(folder: Path, requirements: Sequence[str], *, python: str) -> None:
    """Wheels for another Python than this one; pip takes the names of platforms as they are, so that many are given."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in _GLIBC]
    target = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]
    pip("download", "--quiet", "--dest", str(folder), *target, "--platform=manylinux2014_x86_64", *requirements)


def build(folder: Path) -> None:
    """DeepSpeed and the toolkit, which are pure Python."""
    # Its set-up looks at the torch that is installed.
    isolated = ("--no-build-isolation", DEEPSPEED)
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), *isolated, DS_BUILD_OPS="0")
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))


def flash4_requirements() -> list[str]:
    """Its packages with versions that fit together, but for those that are installed here: torch is."""
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.json"
        pip("install", "--quiet", "--dry-run", "--pre", "--report", str(report), FLASH4)
        found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    return [f"{package['name']}=={package['version']}" for package in found if package["name"] not in _WITH_TORCH]


if __name__ == "__main__":
    sys.exit(main())
