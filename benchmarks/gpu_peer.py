"""Section `peer` of `benchmarks/gpu.py`: transformers' EuroBERT on rows of the same size.

A loop as its users write one: bf16 autocast over fp32 weights, fused AdamW, as many micro-batches a step. It knows no
segments, so each row is one sequence, and its head runs at every position; model FLOPs are counted as for ours, with
what the objective asks for.
"""

import statistics
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_scale import MICRO_BATCHES, Job
from gpu_timing import Row, Rows, attempt, device, free_memory, peak_gb

from toolkit.core.types import AttentionKind
from toolkit.model import Encoder, ModelSettings
from toolkit.testing.models import hugging_face_twin
from toolkit.training.run_state import StepCounts, StepMetrics
from toolkit.training.speed import Speed, known_peak_flops

_MASK_RATIO = 0.4
_NOT_A_TARGET = -100


def measure_peer(job: Job) -> Rows:
    """Tokens a second, with torch's attention."""
    yield attempt({"what": "peer", "preset": job.preset}, partial(_measure_fitting, job))


def _measure_fitting(job: Job) -> Row:
    """On half as many rows as long as the memory is too small, as its users would."""
    while True:
        try:
            return {"rows": job.scale.rows} | _measure(job, job.scale.models[job.preset])
        except torch.OutOfMemoryError:
            if job.scale.rows == 1:
                raise
        free_memory()
        job = replace(job, scale=replace(job.scale, rows=job.scale.rows // 2))


def _measure(job: Job, settings: ModelSettings) -> Row:
    # On a CPU, drawing the weights of the largest takes half a minute.
    with device(), torch.no_grad():
        encoder = Encoder(settings)
        for weight in encoder.parameters():
            weight.normal_(std=0.02) if weight.dim() > 1 else weight.fill_(1.0)
        twin = hugging_face_twin(encoder, AttentionKind.BIDIRECTIONAL).train()
    del encoder
    twin.set_attn_implementation("sdpa")
    adamw = torch.optim.AdamW(twin.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1, fused=True)
    assert settings.vocab_size is not None
    batches = [_batch(job, settings.vocab_size) for _ in range(MICRO_BATCHES)]
    seconds, losses = [], []
    for _ in range(job.scale.steps):
        started = time.perf_counter()
        losses.append(_step(twin, adamw, batches))
        seconds.append(time.perf_counter() - started)
    step_s = statistics.median(seconds[job.scale.skipped_steps :])
    tokens = MICRO_BATCHES * job.scale.positions
    targets, pairs = int(_MASK_RATIO * tokens), settings.num_hidden_layers * tokens * job.scale.row_length
    speed = Speed(settings, peak_flops=known_peak_flops(device(), precision="bf16"))
    speed.add(StepMetrics(losses[-1], 0.0, 0.0, StepCounts((targets,), (targets,), tokens, pairs), step_s))
    return {"first_loss": losses[0], "step_s": step_s, "mfu": None, **speed.take(), "memory_gb": peak_gb()}


def _batch(job: Job, vocabulary: int) -> dict[str, torch.Tensor]:
    shape = (job.scale.rows, job.scale.row_length)
    ids = torch.randint(vocabulary, shape, device=device())
    is_target = torch.rand(shape, device=device()) < _MASK_RATIO
    return {"input_ids": ids, "labels": torch.where(is_target, ids, _NOT_A_TARGET)}


def _step(twin: Any, adamw: torch.optim.Optimizer, batches: list[dict[str, torch.Tensor]]) -> float:
    """One update; reading the loss at its end waits for the device, as a loop that logs does."""
    total = torch.zeros((), device=device())
    for batch in batches:
        with torch.autocast(device().type, dtype=torch.bfloat16):
            loss = twin(**batch).loss / len(batches)
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    adamw.step()
    adamw.zero_grad()
    return float(total)
