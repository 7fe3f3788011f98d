"""The model under what surrounds it in training: weights that are taken away between modules, compiled blocks."""

import subprocess
import sys

import pytest
import torch

from toolkit.core.types import AttentionKind
from toolkit.model import SegmentLayout, compile_blocks_
from toolkit.testing.models import tiny_encoder

# One process, all weights partitioned (threshold 0): steps of both kinds, one without targets, against plain torch.
# A large eps keeps Adam from turning the rounding of a gradient near zero into a whole step.
_STAGE_3 = """
import os, sys, torch, deepspeed
from toolkit.core.types import AttentionKind
from toolkit.testing.models import tiny_encoder

dtype, is_tied = getattr(torch, sys.argv[1]), sys.argv[2].startswith("tied")
os.environ |= dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
deepspeed.init_distributed("gloo", init_method="file://" + sys.argv[3], rank=0, world_size=1)
segments = torch.tensor([[1] * 5 + [2] * 9 + [0] * 2, [1] * 16])
ids = torch.randint(0, 97, segments.shape, generator=torch.Generator().manual_seed(0))
steps = [
    (AttentionKind.CAUSAL, torch.tensor([0, 3, 20])),
    (AttentionKind.BIDIRECTIONAL, torch.tensor([1, 5])),
    (AttentionKind.BIDIRECTIONAL, torch.empty(0, dtype=torch.int64)),
    (AttentionKind.CAUSAL, torch.tensor([2, 31])),
]

def make():
    options = dict(qkv_bias=True, qk_norm=True, head_dim=20) if "options" in sys.argv[2] else {}
    return tiny_encoder(seed=1, tie_word_embeddings=is_tied, **options)

def losses_of(model, backward, step):
    out = []
    for kind, positions in steps:
        loss = model(ids, segments, kind, positions_N=positions, labels_N=ids.flatten()[positions], scale=0.5)
        out.append(loss.item())
        backward(loss)
        step()
    return out

plain = make()
optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-2)
def plain_step():
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
expected = losses_of(plain, lambda loss: loss.backward(), plain_step)

model = make()
config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 0.0,  # The default clips.
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
}
if dtype == torch.bfloat16:
    config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-2)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
assert all(parameter.ds_status.name == "NOT_AVAILABLE" for parameter in model.parameters()), "nothing is partitioned"
found = losses_of(engine, engine.backward, engine.step)
torch.distributed.destroy_process_group()
limit = 1e-5 if dtype == torch.float32 else 2e-2
print(expected, found)
assert found[2] == 0.0
assert all(abs(a - b) <= limit * max(abs(a), 1.0) for a, b in zip(expected, found)), "losses differ"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "head"), [("float32", "untied"), ("bfloat16", "tied"), ("float32", "tied, options")])
def test_weights_partitioned_between_modules(dtype: str, head: str, tmp_path: object) -> None:
    command = [sys.executable, "-c", _STAGE_3, dtype, head, f"{tmp_path}/rendezvous"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "cannot be detected" not in done.stdout + done.stderr


@pytest.mark.slow
def test_compiled_blocks_give_the_same_losses() -> None:
    """Both kinds, several target counts, several layouts; kinds and layouts share their graphs."""
    compiled, plain = tiny_encoder(seed=2), tiny_encoder(seed=2)
    compile_blocks_(compiled)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs = []
    for number, (kind, cut) in enumerate([(kind, cut) for kind in AttentionKind for cut in (3, 8, 13)]):
        segments = torch.tensor([[1] * cut + [2] * (16 - cut), [1] * 16])
        ids = torch.randint(0, 97, segments.shape, generator=torch.Generator().manual_seed(number))
        positions = torch.arange(cut)
        losses = []
        for encoder in (compiled, plain):
            encoder.zero_grad()
            layout = SegmentLayout.from_segments(segments)
            loss = encoder(ids, layout, kind, positions_N=positions, labels_N=positions, scale=1.0)
            loss.backward()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[1], "compiled again after the second number of targets"
