"""Everything that `benchmarks/gpu.py` needs, in one folder, for a GPU machine without network.

    python benchmarks/gpu_wheels.py FOLDER [--python 3.12]

Such a machine usually has torch, triton and transformers already, and those stay as they are. The folder gets wheels of
what is missing beside them: DeepSpeed (without its own kernels, of which none is used), the toolkit from this checkout,
and some small packages. The last line that is printed installs them there.
"""

import argparse
import os
import subprocess
import sys
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
_GLIBC = (17, 24, 26, 27, 28, 31, 34, 35)
_LARGEST = 50 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the GPU machine")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.whl")):
        parser.error(f"{folder} has wheels already, and one version of each is wanted. Give an empty folder.")
    download(folder, SMALL, python=given.python)
    build(folder)
    sizes = [path.stat().st_size for path in folder.glob("*.whl")]
    print(f"{folder}: {len(sizes)} wheels, {sum(sizes) / 2**20:.1f} MiB")
    if sum(sizes) > _LARGEST:
        print(f"That is more than {_LARGEST >> 20} MiB.", file=sys.stderr)
        return 1
    print(f"python -m pip install --no-index --no-deps {folder}/*.whl")
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


if __name__ == "__main__":
    sys.exit(main())
