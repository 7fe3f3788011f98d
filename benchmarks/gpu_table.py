"""The table that `benchmarks/gpu.py` ends with: at most 60 lines, predictions beside measurements."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpu_predictions import roof, tokens_per_second
from gpu_scale import MICRO_BATCHES

MAX_LINES = 60
_WIDTH = 180
_MOST_FAILURES, _MOST_REASONS = 14, 2
_LACKING = {"error": "failed", "skipped": "not available", "not_reached": "not reached"}
Row = dict[str, Any]


def table(rows: Sequence[Row]) -> list[str]:
    """The rows of one call as lines: what failed or was not reached is last, and is never cut."""
    measured = [row for row in rows if not _LACKING.keys() & row.keys()]
    parts = (_machine, _launches, _tests, _runs, _groups, _ablations, _peer, _attention, _head)
    lines = [line[:_WIDTH] for part in parts for line in _lines(part, measured)]
    failed = list(_failures(rows))
    if len(failed) > _MOST_FAILURES:
        failed = [*failed[:_MOST_FAILURES], f"... {len(failed) - _MOST_FAILURES} more that failed, in results.jsonl"]
    for key in ("not_reached", "skipped"):
        if names := sorted({_name(row) for row in rows if key in row}):
            failed.append(f"{_LACKING[key]}: {', '.join(names)}"[: 3 * _WIDTH])
    if any(row.get("scale") == "toy" for row in rows):
        lines.insert(0, "toy sizes on a CPU with a stub of a GPU: the figures mean nothing")
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


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    """Failures, once for each contender and message."""
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        if "error" in row:
            failure = (_name(row), " ".join(row["error"].split()))
            found[failure] = found.get(failure, 0) + 1
    for (name, message), count in found.items():
        times = f" ({count} times)" if count > 1 else ""
        yield f"failed: {name}{times}: {message}"[:_WIDTH]


def _name(row: Row) -> str:
    keys = ("kernel", "contender", "layer", "form", "variant", "attention")
    return ": ".join([row["job"], *(row[key] for key in keys if isinstance(row.get(key), str))])


def _of(rows: Sequence[Row], what: str) -> list[Row]:
    return [row for row in rows if row.get("what") == what]


def _device(rows: Sequence[Row]) -> tuple[str, str]:
    """Name of the GPU, and version of torch."""
    names = [row["name"] for row in _of(rows, "gpu")] or [""]
    versions = [row["versions"]["torch"] for row in _of(rows, "software")] or [""]
    return names[-1], versions[-1]


def _machine(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "gpu")[:1]:
        named = {key: value for key, value in row.items() if key not in ("call", "job", "what", "scale")}
        yield "machine: " + ", ".join(f"{key} {value}" for key, value in named.items())
    for row in _of(rows, "software")[:1]:
        yield "versions: " + ", ".join(f"{key} {value}" for key, value in (row["versions"] | row["libraries"]).items())
    for what, unit, shown in (("copy", "tb_per_second", "TB/s"), ("product", "tflops", "TFLOP/s")):
        if found := " then ".join(f"{row[unit]:,.4g}" for row in _of(rows, what) if unit in row):
            yield f"{what}: {found} {shown}{_model(roof(_device(rows)[0], what))}"


def _model(predicted: float | None) -> str:
    """What the model predicts, in brackets; nothing where it says nothing."""
    return "" if predicted is None else f" [model {predicted:,.0f}]" if predicted > 1000 else f" [model {predicted:g}]"


def _launches(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "launch"):
        differences = f"loss {row['loss_difference']:.1e}, gradient norm {row['norm_difference']:.1e}"
        seconds = " and ".join(f"{seconds:.0f}" for seconds in row["seconds"])
        yield f"run {row['variant']}, {row['precision']}: {differences} from the CPU's; {seconds} s; {row['kernel']}"


def _tests(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "tests"):
        yield f"tests: {', '.join(f'{number} {kind}' for kind, number in row['counts'].items())}"


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
            errors = f"errors {row['loss_error']} {row['d_hidden_error']} {row['d_weight_error']}"
            rate = f"{row['ms']:.2f} ms, {row['tflops']} TFLOP/s"
            yield f"head 210m, {row['contender']}: {rate}, {row['peak_gb']} GB, {errors}"


def _runs(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "run"):
        if row["job"].startswith("ablations"):
            continue
        yield f"{row['preset']} {row['variant']}: {_rate(row, *_device(rows))}"
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


def _rate(row: Row, device: str, torch_version: str) -> str:
    """The model predicts compiled steps with MLM and random-cut that fill the memory."""
    predicted, form = None, (row["objective"], row["windows"], row["compile"], row["fills_memory"])
    if form == ("mlm", "random-cut", True, True):
        predicted = tokens_per_second(device, torch_version, attention=row["attention"], preset=row["preset"])
    share = f", MFU {100 * row['mfu']:.1f} %" if row["mfu"] else ""
    text = f"{row['rows']} rows, {row['attention']}, {row['tokens_per_second']:,.0f} tokens/s{_model(predicted)}{share}"
    losses = f"loss {row['losses'][0]:.4f} to {row['losses'][-1]:.4f}, norm {row['first_norm']:.3f}"
    return f"{text}, {row['memory_gb']} of {row['reserved_gb']} GB, {losses}"


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
    for row in (row for row in _of(rows, "run") if row["job"].startswith("ablations")):
        usual = first.setdefault(row["job"], row)
        ratio = row["tokens_per_second"] / usual["tokens_per_second"]
        beside = "" if row is usual else f", {ratio:.3f} of {usual['variant']}"
        step = f"{1e3 * row['step_s'] / MICRO_BATCHES:.1f} ms a micro-batch"
        yield f"ablation 210m {row['variant']}: {row['tokens_per_second']:,.0f} tokens/s{beside}, {step}"


def _peer(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "peer"):
        share = f", MFU {100 * row['mfu']:.1f} %" if row["mfu"] else ""
        rate = f"{row['rows']} rows, {row['tokens_per_second']:,.0f} tokens/s{share}, {row['memory_gb']} GB"
        yield f"peer {row['preset']}: {rate}"
