"""Matrix products of the presets for `benchmarks/gpu.py`: forward and both backward products, apart and joined."""

from collections.abc import Iterator
from functools import partial

import torch
from gpu_scale import Job
from gpu_timing import Row, Rows, attempt, median_ms, random, tera_per_second

from toolkit.model import ModelSettings


def measure_products(job: Job) -> Rows:
    """Milliseconds and TFLOP/s of every product of one layer and of the head, for each preset and number of rows."""
    for preset, settings in job.scale.kernel_models.items():
        for num_rows in job.scale.matmul_rows:
            for name, rows, width_in, width_out in products(settings, num_rows):
                row = {"what": "product", "preset": preset, "positions": num_rows, "product": name}
                row |= {"shape": [rows, width_in, width_out]}
                yield attempt(row, partial(_time, rows, width_in, width_out, repeats=job.scale.repeats))


def products(settings: ModelSettings, num_rows: int) -> Iterator[tuple[str, int, int, int]]:
    """(name, rows, width in, width out) of each weight; the head at 40 % of the positions."""
    width, inner = settings.hidden_size, settings.intermediate_size
    query = settings.num_attention_heads * settings.head_size
    key = settings.key_value_heads * settings.head_size
    shapes = {
        "q": (width, query),
        "k": (width, key),
        "v": (width, key),
        "q,k,v": (width, query + 2 * key),
        "o": (query, width),
        "gate": (width, inner),
        "up": (width, inner),
        "gate,up": (width, 2 * inner),
        "down": (inner, width),
    }
    for name, (width_in, width_out) in shapes.items():
        yield name, num_rows, width_in, width_out
    assert settings.vocab_size is not None
    yield "head", -(-int(0.4 * num_rows) // 256) * 256, width, settings.vocab_size


def _time(rows: int, width_in: int, width_out: int, *, repeats: int) -> Row:
    input_TD, weight = random(rows, width_in), random(width_out, width_in)
    d_output = random(rows, width_out)
    flops = 2 * rows * width_in * width_out
    works = {
        "forward": lambda: torch.nn.functional.linear(input_TD, weight),
        "d_input": lambda: d_output @ weight,
        "d_weight": lambda: d_output.T @ input_TD,
    }
    row: Row = {}
    for name, work in works.items():
        row[f"{name}_ms"] = median_ms(work, repeats=repeats)
        row[f"{name}_tflops"] = tera_per_second(flops, row[f"{name}_ms"])
    return row
