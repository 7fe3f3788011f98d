"""The table that `benchmarks/gpu.py` ends with: at most 60 lines, predictions beside measurements."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_predictions import PRODUCTS_210M_MS, ROOFS, TOKENS_PER_SECOND
from gpu_scale import FULL, MICRO_BATCHES

MAX_LINES = 60
_WIDTH = 150
_MOST_FAILURES, _MOST_REASONS = 14, 2
Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """All rows of a file of results; none if there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def table(rows: Sequence[Row]) -> list[str]:
    """The rows of one call as lines: what failed is last, and is never cut."""
    measured = [row for row in rows if not {"error", "skipped"} & row.keys()]
    parts = (_machine, _tests, _products, _attention, _head, _pointwise, _runs, _groups, _ablations, _peer)
    lines = [line[:_WIDTH] for part in parts for line in _lines(part, measured)]
    failed = list(_lacking(rows))
    if len(failed) > _MOST_FAILURES:
        failed = [*failed[:_MOST_FAILURES], f"... {len(failed) - _MOST_FAILURES} more that failed, in results.jsonl"]
    if any(row.get("scale") == "toy" for row in rows):
        lines.insert(0, "toy sizes on a CPU: the figures mean nothing")
    room = MAX_LINES - len(failed)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... {len(lines) - room + 1} more lines: read results.jsonl"]
    return [*lines, *failed]


def _lines(part: Callable[[Sequence[Row]], Iterator[str]], rows: Sequence[Row]) -> Iterator[str]:
    """A part of the table; one whose rows are not as expected must not hide the others."""
    try:
        yield from part(rows)
    except (KeyError, TypeError, ValueError) as error:
        yield f"{part.__name__.strip('_')}: not shown, {type(error).__name__}: {error}; read results.jsonl"


def _lacking(rows: Sequence[Row]) -> Iterator[str]:
    """Failures, once for each contender and message; and the names of what is not to be had here."""
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        if "error" in row:
            failure = (_name(row), " ".join(row["error"].split()))
            found[failure] = found.get(failure, 0) + 1
    for (name, message), count in sorted(found.items()):
        times = f" ({count} times)" if count > 1 else ""
        yield f"failed: {name}{times}: {message}"[:_WIDTH]
    if names := sorted({_name(row) for row in rows if "skipped" in row}):
        yield f"not available: {', '.join(names)}".replace("kernels-", "")[: 3 * _WIDTH]


def _name(row: Row) -> str:
    keys = ("kernel", "contender", "layer", "form", "variant", "attention")
    return ": ".join([row["job"], *(row[key] for key in keys if isinstance(row.get(key), str))])


def _of(rows: Sequence[Row], what: str) -> list[Row]:
    return [row for row in rows if row.get("what") == what]


def _machine(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "gpu"):
        named = {key: value for key, value in row.items() if key not in ("section", "job", "what", "scale")}
        yield "machine: " + ", ".join(f"{key} {value}" for key, value in named.items())
    for row in _of(rows, "software"):
        yield "versions: " + ", ".join(f"{key} {value}" for key, value in (row["versions"] | row["libraries"]).items())
        yield f"attention that is installed: {', '.join(row['attention'])}"
    for what, unit in (("copy", "tb_per_second"), ("product", "tflops")):
        found = " then ".join(f"{row[unit]:,.4g}" for row in _of(rows, what) if unit in row)
        if found:
            yield f"{what}: {found} {'TB/s' if what == 'copy' else 'TFLOP/s'}, predicted {ROOFS[what]:,.4g}"


def _tests(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "tests"):
        yield f"tests: {', '.join(f'{number} {kind}' for kind, number in row['counts'].items())}"


def _products(rows: Sequence[Row]) -> Iterator[str]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in _of(rows, "product"):
        if "product" in row:
            layers = 1 if row["product"] == "head" else FULL.models[row["preset"]].num_hidden_layers
            ms = layers * sum(row[f"{name}_ms"] for name in ("forward", "d_input", "d_weight"))
            found.setdefault((row["preset"], row["positions"]), {})[row["product"]] = ms
    for (preset, positions), ms in found.items():
        parts = {"q,k,v apart": sum(ms.get(name, 0.0) for name in "qkv"), "joined": ms.get("q,k,v", 0.0)}
        parts |= {"o": ms.get("o", 0.0), "gate,up apart": ms.get("gate", 0.0) + ms.get("up", 0.0)}
        parts |= {"joined ": ms.get("gate,up", 0.0), "down": ms.get("down", 0.0), "head": ms.get("head", 0.0)}
        is_predicted = preset == "210m" and positions == FULL.positions
        predicted = PRODUCTS_210M_MS if is_predicted else {}
        shown = (f"{n} {v:.2f}" + (f" [{predicted[n]}]" if n in predicted else "") for n, v in parts.items())
        yield f"products {preset} T={positions:,}, ms of all layers [predicted]: {', '.join(shown)}"


def _attention(rows: Sequence[Row]) -> Iterator[str]:
    usual = [r for r in _of(rows, "attention") if (r["layout"], r["kind"]) == ("random-cut", "bidirectional")]
    kernels = dict.fromkeys(row["kernel"] for row in usual)
    for kernel in kernels:
        of_kernel = [row for row in _of(rows, "attention") if row["kernel"] == kernel]
        shown = ", ".join(
            f"{r['heads']} {r['forward_ms']:.3f}+{r['backward_ms']:.3f} ms {r['forward_tflops']}/{r['backward_tflops']}"
            for r in usual
            if r["kernel"] == kernel
        )
        error = max(r["output_error"] for r in of_kernel)
        yield f"attention, random-cut, forward+backward, TFLOP/s: {kernel}: {shown}; worst error {error}"


def _head(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "head"):
        if row["preset"] == "210m":
            memory = f", {row['peak_gb']} GB" if row["peak_gb"] else ""
            errors = f"errors {row['loss_error']} {row['d_hidden_error']} {row['d_weight_error']}"
            rate = f"{row['ms']:.2f} ms, {row['tflops']} TFLOP/s"
            yield f"head 210m, {row['contender']}: {rate}{memory}, {errors}"


def _pointwise(rows: Sequence[Row]) -> Iterator[str]:
    found = {(row["layer"], row["form"]): row for row in _of(rows, "pointwise") if row["preset"] == "210m"}
    for layer in dict.fromkeys(layer for layer, _ in found):
        shown = (
            f"{form} {row['forward_tb_per_second']} and {row['backward_tb_per_second']}"
            for (name, form), row in found.items()
            if name == layer
        )
        yield f"{layer} 210m, TB/s forward and backward: {', '.join(shown)}"
    rates = [f"{row['preset']} {row['ms']:.2f} ms {row['tb_per_second']} TB/s" for row in _of(rows, "optimizer")]
    if rates:
        yield f"fused AdamW: {', '.join(rates)}"


def _runs(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "run"):
        if row.get("section") == "step":
            yield f"step {row['preset']} {row['variant']}: {_rate(row)}"
            compiled, profile = row["compilation"], row.get("profile")
            line = f"  compile: {row['first_step_s']:.0f} s first step, {compiled['graphs']} graphs, "
            line += f"{len(compiled['recompiles'])} recompiles, {len(compiled['failures'])} failures"
            if profile:
                line += f"; profiled: {profile['kernels']} kernels, idle {profile['idle_ms']:.1f} ms, "
                line += f"{profile['num_long_gaps']} gaps, {profile['device_synchronizations']} synchronizations, "
                line += f"{profile['copies_to_host']} copies to the host"
            yield line
            for reason in [*compiled["failures"], *compiled["recompiles"]][:_MOST_REASONS]:
                yield f"  compiled again: {reason}"


def _rate(row: Row) -> str:
    share = f", MFU {100 * row['mfu']:.1f} %" if row["mfu"] else ""
    memory = f", {row['memory_gb']} of {row['reserved_gb']} GB" if row["memory_gb"] else ""
    text = f"{row['rows']} rows, {row['tokens_per_second']:,.0f} tokens/s{_predicted(row)}{share}{memory}"
    return f"{text}, loss {row['first_loss']:.4f}, norm {row['first_norm']:.3f}"


def _predicted(row: Row) -> str:
    """Prediction in brackets; nothing where the model of a step says nothing of such a run."""
    predicted = TOKENS_PER_SECOND.get((row["preset"], row["rows"]))
    if predicted is None or not row["compile"] or (row["objective"], row["windows"]) != ("mlm", "random-cut"):
        return ""
    return f" [{'-'.join(f'{rate / 1e3:g}k' for rate in dict.fromkeys(predicted))}]"


def _groups(rows: Sequence[Row]) -> Iterator[str]:
    """Milliseconds of a micro-batch by group; of the first profiled run of the 210m."""
    usual = [row for row in _of(rows, "run") if row["preset"] == "210m" and "profile" in row]
    for row in usual[:1]:
        profile = row["profile"]
        found = profile["groups_ms"] | {"idle": profile["idle_ms"]}
        yield f"210m {row['variant']}, ms of a micro-batch of {row['rows']} rows:"
        for group, milliseconds in found.items():
            if group != "update":
                yield f"  {group}: {milliseconds / MICRO_BATCHES:.2f}"
        yield f"  update, once a step: {found.get('update', 0.0):.2f}"


def _ablations(rows: Sequence[Row]) -> Iterator[str]:
    """Each beside the first of its job."""
    first: dict[str, Row] = {}
    for row in _of(rows, "run"):
        if row.get("section") != "ablations":
            continue
        usual = first.setdefault(row["job"], row)
        ratio = row["tokens_per_second"] / usual["tokens_per_second"]
        beside = "" if row is usual else f", {ratio:.3f} of {usual['variant']}"
        step = f"{1e3 * row['step_s'] / MICRO_BATCHES:.1f} ms a micro-batch"
        yield f"ablation 210m {row['variant']}: {row['tokens_per_second']:,.0f} tokens/s{beside}, {step}"


def _peer(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "peer"):
        share = f", MFU {100 * row['mfu']:.1f} %" if row["mfu"] else ""
        memory = f", {row['memory_gb']} GB" if row["memory_gb"] else ""
        yield f"peer {row['preset']} {row['attention']}: {row['tokens_per_second']:,.0f} tokens/s{share}{memory}"
