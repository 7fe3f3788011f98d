"""Compute dtype of fine-tuning (bf16 autocast where it is faster), and whatever else scores depend on.

Weights stay fp32 and are cast at every use: on a CPU this gains less than pretraining's bf16 weights, so it is timed
separately.

Shapes: B inputs, S positions in an input.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import transformers

import toolkit
from toolkit.core.machine import processor_name
from toolkit.engine.gpus import has_gpu
from toolkit.engine.precision import Precision, Turn, faster_on_this_cpu, time_in_turns

_given: ContextVar[Precision | None] = ContextVar("given", default=None)


@contextmanager
def cpu_autocast(precision: Precision | None) -> Iterator[None]:
    """Make `choose_autocast` return `precision`, measured before, on a CPU inside the block. None changes nothing."""
    token = _given.set(precision)
    try:
        yield
    finally:
        _given.reset(token)


def choose_autocast(threads: int) -> Precision:
    """bf16 on a GPU with native bf16; on a CPU if it is a fifth faster on `threads` threads, measured once."""
    if has_gpu():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    given = _given.get()
    if given is not None:
        return given
    return faster_on_this_cpu(threads, step="fine-tuning", measure=time_autocast_steps)[0]


def made_by(threads: int, dtype: Precision | None = None) -> dict[str, str]:
    """Versions, device and compute dtype of this process's results; the dtype defaults to that of `choose_autocast`."""
    return {**versions_and_device(), "dtype": dtype or choose_autocast(threads)}


def versions_and_device() -> dict[str, str]:
    """The part of `made_by` that needs no measurement."""
    return {
        "toolkit": toolkit.__version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if has_gpu() else processor_name(),
    }


def time_autocast_steps(threads: int) -> list[Turn]:
    """Time a small encoder's forward and backward pass in fp32 and under bf16 autocast, in turns; about a second."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=4096, hidden_size=256, num_hidden_layers=2, intermediate_size=1024, num_attention_heads=4
    )
    # The random draws of fine-tuning must not depend on whether this was measured before.
    with torch.random.fork_rng(devices=[]):
        encoder = BertModel(config).train()
        ids_BS = torch.arange(16 * 32).view(16, 32)

        def step(precision: Precision) -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = encoder(input_ids=ids_BS).last_hidden_state.float().square().mean()
            loss.backward()

        return time_in_turns(threads, step)
