"""DeepSpeed configuration: reads a JSON file, checks it against the run, and fills in its "auto" values.

The file is an ordinary DeepSpeed configuration. Values that belong to the run (batch sizes, clipping, precision) are
"auto" in it, or equal to the run's. The run sets optimizer and learning-rate schedule, so a file with its own is an
error. Needs no process group, and does not import DeepSpeed.
"""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.core.errors import SettingsError
from toolkit.core.files import shipped_folder
from toolkit.core.settings import invalid_value, nearest
from toolkit.core.text import json_kind
from toolkit.parallel.topology import BatchPlan, ParallelSettings

_MANY_MICRO_BATCHES = 4
_BLOCKS = ("bf16", "data_types", "pipeline", "timers", "zero_optimization")
_SET_BY_RUN = {
    "optimizer": "AdamW is set by [train] (train.weight_decay, train.beta1, ...)",
    "scheduler": "the learning rate is set by [lr]",
    "fp16": "training here is in bf16 or fp32, as precision says",
    "tensor_parallel": "tensor parallelism is set by parallel.tp",
}
_KNOWN_KEYS = {
    *_BLOCKS,
    *_SET_BY_RUN,
    "communication_data_type",
    "disable_python_gc",
    "gradient_accumulation_steps",
    "gradient_allreduce_op",
    "gradient_clipping",
    "managed_gradient_accumulation",
    "zero_force_ds_cpu_optimizer",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
}
_LOWEST_COUNTS = {
    "steps_per_print": 1,
    "zero_optimization.reduce_bucket_size": 1,
    "zero_optimization.stage3_max_live_parameters": 0,
    "zero_optimization.stage3_prefetch_bucket_size": 0,
}
# Similarity from which an unknown key counts as misspelled; that of "fp16" and "bf16" is 0.75.
_MISSPELT_SIMILARITY = 0.85


def shipped_ds_configs() -> tuple[str, ...]:
    """Names of the DeepSpeed files shipped with the package."""
    return tuple(sorted(path.stem for path in shipped_folder("ds_configs").glob("*.json")))


def choose_ds_config(plan: BatchPlan, parallel: ParallelSettings) -> tuple[str, str]:
    """Name of a shipped file for a run that names none, and the reason in words."""
    if parallel.pp > 1:
        return "pipeline", "pipeline stages need ZeRO stage 1"
    if plan.data_parallel == 1:
        return "zero1", "with a single data-parallel rank there is nothing to shard"
    if plan.accumulation >= _MANY_MICRO_BATCHES:
        return "zero1", f"ZeRO stage 2 would reduce gradients after each of {plan.accumulation} micro-batches"
    return "zero2", f"gradients are divided over {plan.data_parallel} copies of the model"


def read_ds_config(source: str) -> dict[str, Any]:
    """Read a DeepSpeed JSON by path, or by the name of a shipped one (`zero2`), without the run's settings."""
    path = Path(source)
    if not path.is_file():
        shipped = {name for stem in shipped_ds_configs() for name in (stem, f"ds_configs/{stem}.json")}
        path = shipped_folder("ds_configs") / f"{path.stem}.json"
        if source not in shipped:
            raise SettingsError(
                f"DeepSpeed file {source!r} does not exist.{nearest(source, shipped_ds_configs())}\n"
                f"Give a path, auto, or one of the shipped names: {', '.join(shipped_ds_configs())}."
            )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        reason = f"byte {error.start:,} is not UTF-8" if isinstance(error, UnicodeDecodeError) else reason
        raise SettingsError(
            f"{path} is not a readable JSON file: {reason}.\n"
            f"Correct it, or use a shipped one: {', '.join(shipped_ds_configs())}."
        ) from None
    if not isinstance(config, dict):
        raise SettingsError(
            f"{path}: expected a JSON object, got {json_kind(config)}.\n"
            f"Write {{...}}, or use a shipped file: {', '.join(shipped_ds_configs())}."
        )
    _check_names(config, path)
    for block in _BLOCKS:
        if not isinstance(config.get(block, {}), dict):
            raise SettingsError(
                f"invalid value for {block} in {path}: expected a JSON object, got {json.dumps(config[block])}.\n"
                f'Write it with its keys, for example "zero_optimization": {{"stage": 2}}.'
            )
    for block, instead in _SET_BY_RUN.items():
        given = config.get(block)
        if given and not (isinstance(given, dict) and given.get("enabled") is False):
            raise SettingsError(f"{path} has the block {block!r}, but {instead}.\nRemove the block from the file.")
    _check_counts(config, path)
    _check_offload(config, zero_stage(config, source=str(path)), path)
    return config


def _offload_device(config: Mapping[str, Any], what: str) -> str:
    """Device of `offload_optimizer` or `offload_param`: none, cpu or nvme."""
    block = config.get("zero_optimization", {}).get(what) or {}
    return str(block.get("device") or "none")


def _check_offload(config: Mapping[str, Any], stage: int, path: Path) -> None:
    for what, lowest in (("offload_optimizer", 1), ("offload_param", 3)):
        block = config.get("zero_optimization", {}).get(what)
        if not isinstance(block, dict | None):
            raise SettingsError(
                f"invalid value for zero_optimization.{what} in {path}: expected an object, such as "
                f'{{"device": "cpu"}}, got {json.dumps(block)}.\nCorrect it, or remove the key.'
            )
        device = _offload_device(config, what)
        if device == "nvme":
            raise SettingsError(
                f'{path} sets zero_optimization.{what}.device to "nvme": checkpoints cannot read state from there.\n'
                'Use "cpu".'
            )
        if device != "none" and stage < lowest:
            raise SettingsError(
                f"{path} has zero_optimization.{what}, which needs ZeRO stage {lowest} or higher, and is of stage "
                f"{stage}.\nChange the stage, or remove {what}."
            )


def _check_counts(config: Mapping[str, Any], path: Path) -> None:
    """Check numbers that DeepSpeed reads only at the first step, ending the run there, or that memory forecasts read.

    As in DeepSpeed, a size may be written 5e8, or "auto" for the default.
    """
    for key, lowest in _LOWEST_COUNTS.items():
        block, _, name = key.rpartition(".")
        value = (config.get(block, {}) if block else config).get(name)
        if value is None or (block and value == "auto"):
            continue
        whole = type(value) is int or (block and type(value) is float and value.is_integer())
        if not whole or value < lowest:
            expected = f"an integer >= {lowest}" + (' or "auto"' if block else " or null")
            raise SettingsError(
                f"invalid value for {key} in {path}: expected {expected}, got {json.dumps(value)}.\n"
                "Correct it, or remove the key."
            )


def zero_stage(config: Mapping[str, Any], *, source: str = "the DeepSpeed file") -> int:
    """ZeRO stage of a DeepSpeed file; 0 if it names none."""
    stage = config.get("zero_optimization", {}).get("stage", 0)
    if type(stage) is not int or stage not in (0, 1, 2, 3):
        raise SettingsError(
            f"invalid value for zero_optimization.stage in {source}: expected 0, 1, 2 or 3, got {json.dumps(stage)}.\n"
            f"Correct it, or use a shipped file: {', '.join(shipped_ds_configs())}."
        )
    return stage


def _check_names(config: Mapping[str, Any], path: Path) -> None:
    """Raise `SettingsError` for a misspelled key: DeepSpeed would silently run without it."""
    for name in config.keys() - _KNOWN_KEYS:
        if close := difflib.get_close_matches(name, _KNOWN_KEYS, n=1, cutoff=_MISSPELT_SIMILARITY):
            raise SettingsError(
                f"unknown key {name!r} in {path}, which DeepSpeed would ignore. Did you mean {close[0]!r}?\n"
                "Correct it, or remove it."
            )


def check_parallel(config: Mapping[str, Any], parallel: ParallelSettings, *, source: str) -> None:
    """Check that the file's ZeRO stage can run these degrees of model parallelism."""
    stage = zero_stage(config)
    if parallel.pp > 1 and stage != 1:
        why = ": DeepSpeed would leave most stages out of the norm of the gradient" if stage == 0 else ""
        raise SettingsError(
            f"pipeline parallelism (parallel.pp={parallel.pp}) cannot run with ZeRO stage {stage} ({source}){why}.\n"
            "Use ds_configs/pipeline.json, which is stage 1, or set parallel.pp=1."
        )
    if parallel.pp > 1 and _offload_device(config, "offload_optimizer") != "none":
        raise SettingsError(
            f"pipeline parallelism (parallel.pp={parallel.pp}) cannot run with an offloaded optimizer ({source}): "
            "DeepSpeed's pipeline keeps gradients on the device.\n"
            "Remove zero_optimization.offload_optimizer from the file, or set parallel.pp=1."
        )
    if parallel.tp > 1 and stage == 0:
        raise SettingsError(
            f"tensor parallelism (parallel.tp={parallel.tp}) cannot run with ZeRO stage 0 ({source}): DeepSpeed would "
            "sum the norm of the gradient over the wrong ranks.\n"
            "Use stage 1 (ds_configs/zero1.json), which costs nothing more, or set parallel.tp=1."
        )


def resolve_ds_config(
    config: Mapping[str, Any],
    *,
    batch: BatchPlan,
    grad_clip: float,
    precision: str,
    source: str,
    largest_parameter: int,
) -> dict[str, Any]:
    """The file's configuration with every value that belongs to the run filled in; messages call it `source`.

    A bucket has `largest_parameter` elements, as many as a rank's largest parameter, unless the file gives a number.
    """
    if precision == "bf16" and zero_stage(config) == 0:
        raise SettingsError(
            f'precision="bf16" cannot run with ZeRO stage 0 ({source}): DeepSpeed would accumulate gradients in '
            'bf16 there.\nUse stage 1 (ds_configs/zero1.json), which costs nothing on one rank, or precision="fp32".'
        )
    resolved = dict(config)
    for block in _BLOCKS:
        resolved[block] = dict(config.get(block, {}))
    values = _run_values(batch, grad_clip, precision)
    if _offload_device(config, "offload_optimizer") != "none":
        # Otherwise DeepSpeed requires its own Adam, which it would compile.
        values["zero_force_ds_cpu_optimizer"] = (False, "the optimizer is torch's AdamW, on a CPU too")
    for key, (value, why) in values.items():
        _fill_auto(resolved, key, value, why=why, source=source)
    zero = resolved["zero_optimization"]
    if zero.get("reduce_bucket_size") in (None, "auto"):
        # DeepSpeed's default of 5e8 elements is more than many models have: nothing would be reduced before the end of
        # the backward pass, and stage 2 (in fp32 also stage 1) would allocate that in each micro-batch, 2 GB.
        zero["reduce_bucket_size"] = largest_parameter
    # Its timer would wait for the device twice in each micro-batch.
    resolved["timers"].setdefault("throughput", {"enabled": False})
    # Add each bf16 gradient to its fp32 sum at once, instead of all of them at the end of the backward pass.
    resolved["bf16"].setdefault("immediate_grad_update", True)
    # Garbage collections at random moments on random ranks would delay all; the engine collects on all at once.
    resolved.setdefault("disable_python_gc", True)
    resolved["zero_allow_untested_optimizer"] = True
    return resolved


def _run_values(batch: BatchPlan, grad_clip: float, precision: str) -> dict[str, tuple[Any, str]]:
    """Values that the run determines, by key path, each with the reason."""
    arithmetic = batch.describe()
    exact = "loss and gradient are means over the targets of the whole step"
    finite = "a value that is not finite has to be noticed"
    return {
        "train_batch_size": (batch.global_batch_rows, arithmetic),
        "train_micro_batch_size_per_gpu": (batch.micro_batch_rows, arithmetic),
        "gradient_accumulation_steps": (batch.accumulation, arithmetic),
        "gradient_clipping": (grad_clip, f"train.grad_clip = {grad_clip}"),
        "bf16.enabled": (precision == "bf16", f'precision = "{precision}"'),
        # Without it, stage 2 would turn a non-finite norm into a number, and step.
        "bf16.check_grad_overflow": (True, finite),
        "zero_optimization.compute_grad_norm": (True, f"the gradient norm is logged, and {finite}"),
        "data_types.grad_accum_dtype": ("fp32", "gradients are accumulated in fp32"),
        # Under bf16 DeepSpeed's default is bf16, which rounds the accumulated sum even on one rank.
        "communication_data_type": ("fp32", "gradients are summed over ranks in fp32"),
        "gradient_allreduce_op": ("mean", exact),
        "pipeline.activation_checkpoint_interval": (0, "to DeepSpeed, a whole pipeline stage is one layer"),
        # Otherwise each micro-batch is a separate update.
        "managed_gradient_accumulation": (True, exact),
    }


def deepspeed_error_message(error: Exception) -> str:
    """Message on what DeepSpeed rejects in its configuration, and what to do."""
    if isinstance(error, ValidationError):
        findings = [
            f"  unknown key {key!r}"
            if finding["type"] == "extra_forbidden"
            else f"  {invalid_value(key, json.dumps(finding['input'], default=str), finding)}"
            for finding in error.errors(include_url=False)
            for key in [".".join(map(str, finding["loc"]))]
        ]
        found = ":\n" + "\n".join(findings)
    else:
        kind = "" if isinstance(error, AssertionError | ValueError) else f"{type(error).__name__}: "
        found = f": {kind}{str(error).strip()}"
    return f"DeepSpeed rejects its configuration{found}\nCorrect the file (--ds-config), or use a shipped one: " + (
        f"{', '.join(shipped_ds_configs())}."
    )


def _fill_auto(config: dict[str, Any], key: str, value: Any, *, why: str, source: str) -> None:
    *blocks, name = key.split(".")
    values = config[blocks[0]] if blocks else config
    found = values.get(name, "auto")
    # 1 equals true in Python, but not in JSON.
    is_equal = found == value and isinstance(found, bool) == isinstance(value, bool)
    if found != "auto" and not is_equal:
        raise SettingsError(
            f"{source} sets {key} to {json.dumps(found)}, but the run needs {json.dumps(value)}: {why}.\n"
            f'Write "auto" in the file, or change the run.'
        )
    values[name] = value
