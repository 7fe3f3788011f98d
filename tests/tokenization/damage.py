"""Loads damaged tokenizer files, for a process of its own: `python -m tests.tokenization.damage FOLDER SEED COUNT`.

FOLDER holds one folder per kind of file, each with what a tokenizer needs, its `DAMAGE` (name of the file that is
damaged) and `LOAD` (what is loaded, "" for the folder). Every damaged file has to load and encode, or to be refused
with a TokenizationError, in a few seconds; anything else is printed, one line each.
"""

import contextlib
import faulthandler
import random
import re
import signal
import sys
from pathlib import Path

from tokenization import EncodingRules, FastBackend, FastUnavailable, TokenizationError, load

__all__ = ["damaged", "main"]

TEXTS = ["Hello world, 123  e\u0301 \u65e5\u672c\r\n <unk>", "", "a"]
VALUES = (b"0", b"-1", b"4294967295", b"9" * 20, b"1e308", b"true", b"null", b'"x"', b"[]", b"{}", b"1000000000")
SIGNS = (b"\x00", b"\xff", b'"', b"{", b"}", b"[", b"]", b",", b"\n", b"\xed\xa0\x80", b"\\u0000", b"\\ud800", b"'")
SECONDS = 10


class _Hang(BaseException):
    pass


def damaged(content: bytes, generator: random.Random) -> bytes:
    """Bytes flipped, overwritten, inserted, doubled, cut out or cut off; numbers and words of JSON replaced."""
    found = bytearray(content)
    for _ in range(generator.choice([1, 1, 1, 2, 5, 20])):
        place = generator.randrange(len(found) + 1)
        kind = generator.randrange(8)
        if kind == 0 and place < len(found):
            found[place] ^= 1 << generator.randrange(8)
        elif kind == 1:
            found[place : place + 1] = generator.randbytes(1)
        elif kind == 2:
            found[place:place] = generator.randbytes(generator.randint(1, 8))
        elif kind == 3:
            del found[place : place + generator.randint(1, 50)]
        elif kind == 4:
            start = generator.randrange(len(found) + 1)
            found[place:place] = found[start : start + generator.randint(1, 100)]
        elif kind == 5 and generator.random() < 0.5:
            del found[place:]
        elif kind == 6:
            found[place : place + 1] = generator.choice(SIGNS)
        else:
            _replace_value(found, place, generator)
    return bytes(found)


def _replace_value(content: bytearray, place: int, generator: random.Random) -> None:
    start = max(0, place - 500)
    values = list(re.finditer(rb"-?\d+|true|false|null", bytes(content[start : place + 500])))
    if values:
        value = generator.choice(values)
        content[start + value.start() : start + value.end()] = generator.choice(VALUES)


def _use(path: Path, *, is_thorough: bool) -> None:
    tokenizer = load(path, rules=EncodingRules(add_eod=False))
    ids, _ = tokenizer.encode_batch(TEXTS)
    tokenizer.decode(ids)
    if is_thorough:
        assert tokenizer.files
        assert tokenizer.fingerprint
        with contextlib.suppress(FastUnavailable):
            FastBackend.open(tokenizer, characters="ab").encode_batch(TEXTS)


def _hang(*_: object) -> None:
    raise _Hang


def main(folder: Path, seed: int, count: int) -> None:
    """Damage each kind's file `count` times; print how it went."""
    faulthandler.enable()
    signal.signal(signal.SIGALRM, _hang)
    for kind in sorted(folder.iterdir()):
        target = kind / (kind / "DAMAGE").read_text()
        whole, num_read = target.read_bytes(), 0
        generator = random.Random(f"{seed} {kind.name}")
        for number in range(count):
            target.write_bytes(damaged(whole, generator))
            signal.alarm(SECONDS)
            try:
                _use(kind / (kind / "LOAD").read_text(), is_thorough=number % 10 == 0)
                num_read += 1
            except TokenizationError:
                pass
            except BaseException as error:
                print(f"{kind.name} {number}: {type(error).__name__}: {str(error)[:200]!r}", flush=True)
            signal.alarm(0)
        target.write_bytes(whole)
        print(f"{kind.name}: {num_read} of {count} were read all the same", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
