"""Is the suite worth its name? Plants faults one at a time in a copy of the source and expects tests to fail.

    python tests/planted_faults.py             all faults, two at a time
    python tests/planted_faults.py mask rope   only those with a word in their name
    python tests/planted_faults.py --sample 10 as many, drawn by the commit: others with the next one
    python tests/planted_faults.py --check     only see that every fault still fits the source

Each fault is a text in a file, what replaces it, and the test files that have to notice. A fault is caught when those
tests fail; tests that cannot even be collected, or that hang, prove nothing and count as a miss. Leaves with 0 when
all but one in a hundred are caught, 1 when more slip through, 2 when a fault no longer fits or the tests fail without
any fault.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    *("toolkit", "tokenization", "launchers", "ds_configs", "docs", "tests"),
    *("pyproject.toml", "README.md", "LICENSE"),
)
ALLOWED_MISSES = 0.01
SECONDS_FOR_ONE_FAULT = 200
SECONDS_FOR_ALL_TESTS = 1200
WORKERS = 2


@dataclass(frozen=True)
class Fault:
    """One mistake somebody could make: `old` (found exactly once in `path`) becomes `new`; `tests` have to notice.

    Tests are files; one test of a file where the whole file takes minutes.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        name="a finished process waits for the interpreter's end",
        path="toolkit/core/processes.py",
        old="    os._exit((code or (0 if is_flushed else _OUTPUT_LOST)) & 0xFF)",
        new="    sys.exit(code or (0 if is_flushed else _OUTPUT_LOST))",
        tests=("tests/core/test_processes.py",),
    ),
    Fault(
        name="a rank that has left still looks at its process groups",
        path="toolkit/engine/peers.py",
        old="        with self._looking:\n            self._has_left.set()",
        new="        self._has_left.set()",
        tests=("tests/engine/test_peers.py",),
    ),
    Fault(
        name="doctor: a rank that has less than rank 0 is not compared at all",
        path="toolkit/training/shared_inputs.py",
        old="if inputs.get(name, ours).identity != ours.identity:",
        new="if len(inputs) == len(first) and inputs.get(name, ours).identity != ours.identity:",
        tests=("tests/workflows/test_doctor.py",),
    ),
    Fault(
        name="doctor: a clock that is behind is taken for one that is right",
        path="toolkit/workflows/findings.py",
        old="if abs(by) > _SECONDS_APART",
        new="if by > _SECONDS_APART",
        tests=("tests/workflows/test_doctor.py",),
    ),
    Fault(
        name="remote: a shard that a rank has open makes room",
        path="toolkit/remote/cache.py",
        old="    if not _is_locked_alone(lock):\n        return False",
        new="    _is_locked_alone(lock)",
        tests=("tests/remote/test_cache.py",),
    ),
    Fault(
        name="remote: who waits for a shard waits for who has it open",
        path="toolkit/remote/cache.py",
        old="fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        new="fcntl.flock(lock, fcntl.LOCK_EX)",
        tests=("tests/remote/test_cache.py",),
    ),
    Fault(
        name="remote: what has arrived is not hashed",
        path="toolkit/remote/objects.py",
        old="if sha256 is not None and (found := hash_file(part_of)) != sha256:",
        new="if (found := hash_file(part_of)) == sha256 == found[:0]:",
        tests=("tests/remote/test_cache.py",),
    ),
    Fault(
        name="remote: a storage that is away is not asked again",
        path="tokenization/hub.py",
        old="return is_one or (type(error) is OSError and error.errno in _TRANSIENT_NUMBERS)",
        new="return False",
        tests=("tests/remote/test_objects.py",),
    ),
    Fault(
        name="core: a manifest may name a file outside of its folder",
        path="toolkit/core/files.py",
        old='isdisjoint(name.split("/"))',
        new="isdisjoint([name])",
        tests=("tests/core/test_files.py", "tests/data/test_manifest.py"),
    ),
    Fault(
        name="remote: a checkpoint that waits to be copied is deleted",
        path="toolkit/training/copying.py",
        old="not self._copies.done() and step not in self._copied",
        new="False",
        tests=("tests/training/test_copying.py",),
    ),
    Fault(
        name="remote: a copy without its manifest is one",
        path="toolkit/run/remote_checkpoints.py",
        old="if file == MANIFEST_NAME and step is not None:",
        new="if step is not None:",
        tests=("tests/training/test_copying.py",),
    ),
    Fault(
        name="remote: a manifest is uploaded before what it names",
        path="toolkit/preprocess/staging.py",
        old="key=lambda path: -len(path.parts)",
        new="key=lambda path: len(path.parts)",
        tests=("tests/preprocess/test_staging.py",),
    ),
    Fault(
        name="remote: a source that changed is read on",
        path="toolkit/preprocess/readers/streams.py",
        old='if list_objects(source.name).get("") != Object(source.num_bytes, source.version):',
        new="if False:",
        tests=("tests/preprocess/test_preprocess_remote.py",),
    ),
    Fault(
        name="hangs: a rank that computes counts as one that waits",
        path="toolkit/engine/stalls.py",
        old="if is_waiting and (names | in_main) & _IN_STEP:",
        new="if is_waiting or (names | in_main) & _IN_STEP:",
        tests=("tests/engine/test_stalls.py",),
    ),
    Fault(
        name="slow ranks: stages of a pipeline are compared with one another",
        path="toolkit/training/slow_ranks.py",
        old="own = np.array(seconds_W).reshape(num_stages, -1)",
        new="own = np.array(seconds_W).reshape(1, -1)",
        tests=("tests/training/test_slow_ranks.py",),
    ),
    Fault(
        name="slow ranks: time spent on other ranks' data counts as one's own",
        path="toolkit/training/steps_ahead.py",
        old="waited = max(0.0, agreed.built_at - began) if agreed else 0.0",
        new="waited = time.perf_counter() - began",
        tests=("tests/training/test_steps_ahead.py",),
    ),
    Fault(
        name="switches: a loss that is once below has caught up",
        path="toolkit/run/switches.py",
        old="if all(gaps[later] <= 0 for later in gaps if later >= step)",
        new="if gaps[step] <= 0",
        tests=("tests/run/test_switches.py",),
    ),
    Fault(
        name="switches: runs are compared at equal steps, whatever their batches",
        path="toolkit/run/switches.py",
        old="places = [other.plan.positions(step) for step in theirs]",
        new="places = [run.plan.positions(step) for step in theirs]",
        tests=("tests/run/test_switches.py",),
    ),
    Fault(
        name="switches: the slope is that of the whole phase",
        path="toolkit/run/switches.py",
        old="first = phase.start + (phase.stop - phase.start) // 2",
        new="first = phase.start",
        tests=("tests/run/test_switches.py",),
    ),
    Fault(
        name="merge: the mean is summed in fp32",
        path="toolkit/conversion/merging.py",
        old="total = first.double().mul_(numbers[0])",
        new="total = first.mul_(numbers[0])",
        tests=("tests/conversion/test_merging.py",),
    ),
    Fault(
        name="merge: the weights of 1-sqrt are a 1-sqrt themselves",
        path="toolkit/conversion/merging.py",
        old="lambda place: sqrt(place + 1) - sqrt(place)",
        new="lambda place: 1 / sqrt(place + 1)",
        tests=("tests/conversion/test_merging.py",),
    ),
    Fault(
        name="merge: blocks of all checkpoints stay in memory",
        path="toolkit/checkpoint/tensor_files.py",
        old="        yield _block(place, place.first + first, place.first + min(first + rows_per_block, num_rows))",
        new="        block = _block(place, first, min(first + rows_per_block, num_rows))\n        yield block",
        tests=("tests/conversion/test_merging.py",),
    ),
    Fault(
        name="merge: a run is resumed from weights alone",
        path="toolkit/run/identity.py",
        old="    if not manifest.has_moments:",
        new="    if False:",
        tests=("tests/training/test_initial_weights.py",),
    ),
    Fault(
        name="pairs: a causal model is read at the token itself",
        path="toolkit/finetuning/pairs/likelihood.py",
        old="        return form, 1\n",
        new="        return form, 0\n",
        tests=("tests/finetuning/pairs/test_pairs.py",),
    ),
    Fault(
        name="fine-tuning: a random head answers under the labels' names",
        path="toolkit/finetuning/heads.py",
        old="labels=unnamed, problem_type=None",
        new="labels=labels, problem_type=problem_type",
        tests=("tests/finetuning/test_model_folders.py",),
    ),
    Fault(
        name="fine-tuning: what training put around a text is not in the folder",
        path="toolkit/model_folder.py",
        old="json.loads(tokenizer.backend_tokenizer.to_str()),",
        new='json.loads(tokenizer.backend_tokenizer.to_str()) | {"post_processor": None},',
        tests=("tests/finetuning/test_model_folders.py",),
    ),
    Fault(
        name="in and out: what a wrapper put in front of names stays there",
        path="toolkit/conversion/weights.py",
        old="own = name.removeprefix(wrapper)",
        new="own = name",
        tests=("tests/conversion/test_names_and_heads.py",),
    ),
    Fault(
        name="in and out: a SentenceTransformer is pooled by the mean whatever it was",
        path="toolkit/finetuning/ir/embedding.py",
        old="pooling=(kinds,) if isinstance(kinds, str) else tuple(kinds),",
        new='pooling=("mean",),',
        tests=("tests/finetuning/ir/test_sentence_transformers.py",),
    ),
    Fault(
        name="in and out: what was trained here gets a token in front that it never saw",
        path="toolkit/finetuning/pairs/likelihood.py",
        old="or has_one or (manifest is not None and manifest.step):",
        new="or has_one:",
        tests=("tests/finetuning/pairs/test_pairs.py",),
    ),
    Fault(
        name="pairs: the frame of a text is scored",
        path="toolkit/finetuning/pairs/task.py",
        old="if not frame[position]]",
        new="]",
        tests=("tests/finetuning/pairs/test_pairs.py",),
    ),
    Fault(
        name="pairs: the grid's steps make a scored cell another one",
        path="toolkit/experiments/grid/declaration.py",
        old='shared = {"threads": self.grid.threads}',
        new='shared = {"threads": self.grid.threads, "steps": self.grid.steps}',
        tests=("tests/finetuning/pairs/test_pairs.py",),
    ),
    Fault(
        name="study: of two givers with equal parts the last placed is taken",
        path="toolkit/experiments/study/tree.py",
        old="giver = max(order, key=",
        new="giver = max(reversed(order), key=",
        tests=("tests/experiments/study/test_models.py",),
    ),
    Fault(
        name="study: a model that is a beginning of another one is not placed before it",
        path="toolkit/experiments/study/tree.py",
        old="            return 0, total, 0\n",
        new="            return 1, -total, 0\n",
        tests=("tests/experiments/study/test_models.py",),
    ),
    Fault(
        name="study: the checkpoint that others begin from is not kept",
        path="toolkit/experiments/study/tree.py",
        old="return tuple(sorted({*self.cuts, self.model.total_steps}))",
        new="return (self.model.total_steps,)",
        tests=("tests/experiments/study/test_plan.py",),
    ),
    Fault(
        name="study: a giver that has passed the fork is waited for",
        path="toolkit/experiments/study/plan.py",
        old="if self._first[leaf.giver] < leaf.fork:",
        new="if self._first[leaf.giver] <= leaf.model.total_steps:",
        tests=("tests/experiments/study/test_plan.py",),
    ),
    Fault(
        name="study: a piece begins behind a stop",
        path="toolkit/experiments/study/pieces.py",
        old="return not self._is_stopped",
        new="return True",
        tests=("tests/experiments/study/test_pieces.py",),
    ),
    Fault(
        name="study: the tree on the terminal is taller than it",
        path="toolkit/experiments/study/live.py",
        old="order.index(states[name].kind))[:room]",
        new="order.index(states[name].kind))",
        tests=("tests/experiments/study/test_live.py",),
    ),
    Fault(
        name="study: a damaged checkpoint is begun from",
        path="toolkit/experiments/study/plan.py",
        old="            except CheckpointError:\n                continue\n",
        new="            except CheckpointError:\n                pass\n",
        tests=("tests/experiments/study/test_plan.py",),
    ),
    Fault(
        name="study: a run that has begun keeps what the file has otherwise by now",
        path="toolkit/experiments/study/plan.py",
        old='settings.model_copy(update={"fork": saved_settings(own).fork})',
        new="saved_settings(own)",
        tests=("tests/experiments/study/test_plan.py",),
    ),
    Fault(
        name="run: a checkpoint that lacks bytes counts as the newest",
        path="toolkit/run/folder.py",
        old=" if is_complete(path)), 0)",
        new="), 0)",
        tests=("tests/experiments/study/test_plan.py",),
    ),
    Fault(
        name="study: `from` forgets the phases before",
        path="toolkit/experiments/study/models.py",
        old='"schedule": [*before, first, *later]',
        new='"schedule": [first, *later]',
        tests=("tests/experiments/study/test_models.py",),
    ),
    Fault(
        name="tensor parallelism: the gradient of what enters a region is not summed",
        path="toolkit/parallel/tensor_parallel.py",
        old="        dist.all_reduce(gradient, group=ctx.group)\n",
        new="",
        tests=("tests/equivalence/test_gradients.py::test_every_gradient_under_tensor_parallelism",),
    ),
    Fault(
        name="tensor parallelism: the gradient of a norm inside a region is not summed",
        path="toolkit/parallel/tensor_parallel.py",
        old="weight_E = enter_region(self.weight, self._group)",
        new="weight_E = self.weight",
        tests=("tests/equivalence/test_gradients.py::test_every_gradient_under_tensor_parallelism",),
    ),
    Fault(
        name="tensor parallelism: the norm counts a whole weight once for each rank",
        path="toolkit/engine/initialization.py",
        old="share_of(parameter) is not None or tp_rank == 0",
        new="True",
        tests=("tests/equivalence/test_gradients.py::test_every_gradient_under_tensor_parallelism",),
    ),
    Fault(
        name="tensor parallelism: a rank takes its tokens to begin one row late",
        path="toolkit/parallel/shares.py",
        old="own = index - self.start",
        new="own = index - self.start - (self.number > 0)",
        tests=("tests/parallel/test_tensor_parallel.py",),
    ),
    Fault(
        name="tensor parallelism: the head normalises over padding too",
        path="toolkit/parallel/tensor_parallel.py",
        old='        logits_NV[:, self._share.filled :] = float("-inf")\n',
        new="",
        tests=("tests/equivalence/test_gradients.py::test_every_gradient_under_tensor_parallelism",),
    ),
    Fault(
        name="clm: the label is the token itself, not the next",
        path="toolkit/objectives/clm.py",
        old="take(positions_N + 1)",
        new="take(positions_N)",
        tests=("tests/objectives/test_clm.py",),
    ),
    Fault(
        name="clm: the last token of a segment predicts the first of the next",
        path="toolkit/objectives/clm.py",
        old="np.equal(now, following, out=has_next_BS[:, :-1])",
        new="np.not_equal(following, 0, out=has_next_BS[:, :-1])",
        tests=("tests/objectives/test_clm.py",),
    ),
    Fault(
        name="mntp: a hidden token is predicted where it stands",
        path="toolkit/objectives/mlm.py",
        old="positions_N=hidden_N - self.label_offset",
        new="positions_N=hidden_N",
        tests=("tests/objectives/test_mntp.py",),
    ),
    Fault(
        name="span: every row begins with a whole gap",
        path="toolkit/objectives/span.py",
        old="np.searchsorted(first_gap, gap_BS[:, :1]",
        new="np.searchsorted(1 - gap_at_least, gap_BS[:, :1]",
        tests=("tests/objectives/test_span.py",),
    ),
    Fault(
        name="diffusion: the weights of a row's targets are those of the first row",
        path="toolkit/objectives/diffusion.py",
        old="ratio_B1[rows_N, 0]",
        new="ratio_B1[rows_N * 0, 0]",
        tests=("tests/contracts/test_objectives.py",),
    ),
    Fault(
        name="words: a word goes on over the end of its segment",
        path="toolkit/core/types.py",
        old="self.ends_V.take(tokens_BS[:, :-1]) | (segments_BS[:, 1:] != segments_BS[:, :-1])",
        new="self.ends_V.take(tokens_BS[:, :-1])",
        tests=("tests/objectives/test_whole_words.py",),
    ),
    Fault(
        name="words: nothing stands apart from what is behind it",
        path="tokenization/word_boundaries.py",
        old='ends_V[token_id] = last != " " and not _is_letter(last)',
        new="ends_V[token_id] = False",
        tests=("tests/tokenization/test_word_boundaries.py",),
    ),
    Fault(
        name="words: the draw of a word is that of its last token",
        path="toolkit/objectives/mlm.py",
        old="choice_BS = choice_BS.reshape(-1).take(first_BS)",
        new="choice_BS = choice_BS.reshape(-1).take(np.searchsorted(first_BS.reshape(-1), first_BS, side='right') - 1)",
        tests=("tests/objectives/test_whole_words.py",),
    ),
    Fault(
        name="mlm: special tokens are masked",
        path="toolkit/objectives/mlm.py",
        old="self._is_ordinary_V[list(vocabulary.special_ids)] = False",
        new="pass",
        tests=("tests/objectives/test_mlm.py",),
    ),
    Fault(
        name="mlm: padding is masked",
        path="toolkit/objectives/mlm.py",
        old="is_ordinary_BS &= segments_BS != 0",
        new="pass",
        tests=("tests/contracts/test_objectives.py",),
    ),
    Fault(
        name="draws: masks follow the place in the micro-batch, not the sample",
        path="toolkit/core/draws.py",
        old="keys_B = hash_numbers(key, self._positions_B)",
        new="keys_B = hash_numbers(key, np.arange(len(self._positions_B)))",
        tests=("tests/contracts/test_objectives.py",),
    ),
    Fault(
        name="schedule: the step after a boundary is still in the old phase",
        path="toolkit/objectives/schedule.py",
        old="bisect_right(self.phases, step, key=lambda phase: phase.stop)",
        new="bisect_right(self.phases, step - 1, key=lambda phase: phase.stop)",
        tests=("tests/objectives/test_schedule.py",),
    ),
    Fault(
        name="attention by products: a position sees one token ahead",
        path="toolkit/model/kernels/plain_attention.py",
        old=".triu(1), float",
        new=".triu(2), float",
        tests=("tests/model/test_attention.py",),
    ),
    Fault(
        name="attention by torch: the causal mask is left out",
        path="toolkit/model/kernels/plain_attention.py",
        old="is_causal=kind is AttentionKind.CAUSAL,",
        new="is_causal=False,",
        tests=("tests/model/test_attention.py",),
    ),
    Fault(
        name="attention: a window that hides the ends of a segment is taken for none",
        path="toolkit/model/kernels/plain_attention.py",
        old="window >= length - 1 else",
        new="window >= length - 2 else",
        tests=("tests/model/test_attention.py",),
    ),
    Fault(
        name="attention in bands: a position sees one token beyond its window",
        path="toolkit/model/kernels/window_attention.py",
        old="distance_LM >= -window",
        new="distance_LM >= -window - 1",
        tests=("tests/model/test_attention.py",),
    ),
    Fault(
        name="attention by products: a position sees one token beyond its window",
        path="toolkit/model/kernels/plain_attention.py",
        old="own - window - 1",
        new="own - window - 2",
        tests=("tests/model/test_attention.py",),
    ),
    Fault(
        name="attention: under a window, a position sees the segments behind its own",
        path="toolkit/model/kernels/window_attention.py",
        old="query_nL1 == key_n1M",
        new="query_nL1 <= key_n1M",
        tests=("tests/model/test_attention.py",),
    ),
    Fault(
        name="attention: neighbouring segments see each other",
        path="toolkit/model/segments.py",
        old="is_first_BS[:, 1:] = segments_BS[:, 1:] != segments_BS[:, :-1]",
        new="is_first_BS[:, 1:] = (segments_BS[:, 1:] == 0) != (segments_BS[:, :-1] == 0)",
        tests=("tests/model/test_attention.py",),
    ),
    Fault(
        name="rope: positions go on across segments",
        path="toolkit/model/segments.py",
        old="rope_positions_T = np.arange(segments_BS.size) - np.repeat(starts, lengths)",
        new="rope_positions_T = np.arange(segments_BS.size) % segments_BS.shape[1]",
        tests=("tests/model/test_attention.py", "tests/model/test_encoder.py"),
    ),
    Fault(
        name="norm: eps ten times too large",
        path="toolkit/model/layers.py",
        old="torch.rsqrt(mean_square_T1 + eps)",
        new="torch.rsqrt(mean_square_T1 + 10 * eps)",
        tests=("tests/model/test_encoder.py",),
    ),
    Fault(
        name="model: a rotation of fp32 has no gradient",
        path="toolkit/model/layers.py",
        old="return _rotate(grad_outputs[0], cos_T1E, -sin_T1E), None, None",
        new="g, = grad_outputs; return _rotate(g, cos_T1E, -sin_T1E) * (g.dtype != torch.float32), None, None",
        tests=("tests/model/test_pointwise.py", "tests/model/test_compiled_functions.py"),
    ),
    Fault(
        name="model: a rotation of bf16 has no gradient",
        path="toolkit/model/layers.py",
        old="return _rotate(grad_outputs[0], cos_T1E, -sin_T1E), None, None",
        new="g, = grad_outputs; return _rotate(g, cos_T1E, -sin_T1E) * (g.dtype != torch.bfloat16), None, None",
        tests=("tests/model/test_pointwise.py", "tests/model/test_compiled_functions.py"),
    ),
    Fault(
        name="model: a rotation of fp64 has no gradient",
        path="toolkit/model/layers.py",
        old="return _rotate(grad_outputs[0], cos_T1E, -sin_T1E), None, None",
        new="g, = grad_outputs; return _rotate(g, cos_T1E, -sin_T1E) * (g.dtype != torch.float64), None, None",
        tests=("tests/model/test_pointwise.py", "tests/model/test_compiled_functions.py"),
    ),
    Fault(
        name="loss: padding of the target list has a gradient",
        path="toolkit/model/kernels/cross_entropy.py",
        old="_wide_product(d_logits_NV.T, (hidden_ND * factor_N[:, None]).to(hidden_ND.dtype))",
        new="_wide_product(d_logits_NV.T, hidden_ND)",
        tests=("tests/model/test_loss.py",),
    ),
    Fault(
        name="loss: the logits of a chunk outlive it",
        path="toolkit/model/kernels/cross_entropy_forms.py",
        old="d_logits_NV = log_probs_NV.exp_()",
        new="d_logits_NV = _losses_of.kept = log_probs_NV.exp_()",
        tests=("tests/model/test_loss.py",),
    ),
    Fault(
        name="embedding: gradients of a token are summed in bf16",
        path="toolkit/model/layers.py",
        old="weight_VD.dtype.itemsize > 2",
        new="weight_VD.dtype.itemsize >= 2",
        tests=("tests/model/test_embedding.py",),
    ),
    Fault(
        name="engine: the moments of a second parameter group are not found",
        path="toolkit/engine/optimizer_state.py",
        old="optimizer._hp_optimizer_states_linked = False",
        new="pass",
        tests=("tests/equivalence/test_gradients.py",),
    ),
    Fault(
        name="engine: gradients summed in fp32 are rounded to bf16 on their way over the ranks",
        path="toolkit/engine/ds_config.py",
        old='"communication_data_type": ("fp32",',
        new='"communication_data_type": ("bf16",',
        tests=("tests/equivalence/test_gradients.py",),
    ),
    Fault(
        name="engine: a file may ask for sums of gradients over ranks instead of means",
        path="toolkit/engine/ds_config.py",
        old='        "gradient_allreduce_op": ("mean", exact),\n',
        new="",
        tests=("tests/engine/test_ds_config.py",),
    ),
    Fault(
        name="cache: a damaged result is used",
        path="toolkit/core/cache.py",
        old='if kept["key"] == self._key(kept["value"]) else None',
        new="",
        tests=("tests/engine/test_precision.py",),
    ),
    Fault(
        name="gpus: those behind a name that CUDA does not know are counted",
        path="toolkit/engine/gpus.py",
        old="return listed[:count] or",
        new="return listed or",
        tests=("tests/engine/test_gpus.py",),
    ),
    Fault(
        name="gpus: DS_ACCELERATOR=cpu keeps no grid off them",
        path="toolkit/engine/gpus.py",
        old="""    if not has_gpu():
        return []
""",
        new="",
        tests=("tests/engine/test_gpus.py",),
    ),
    Fault(
        name="precision: bf16 is chosen where it is just as fast",
        path="toolkit/engine/precision.py",
        old="speed_up >= _NEEDED_SPEED_UP",
        new="speed_up >= 1.0",
        tests=("tests/engine/test_precision.py",),
    ),
    Fault(
        name="topology: tensor-parallel ranks read rows of their own",
        path="toolkit/parallel/topology.py",
        old="return self.rank // self.tp % self.dp",
        new="return self.rank % self.dp",
        tests=("tests/parallel/test_topology.py",),
    ),
    Fault(
        name="pipeline: the last stage always attends causally",
        path="toolkit/engine/pipeline.py",
        old="        settings = self._stage.settings\n",
        new="        settings = self._stage.settings\n"
        "        attention = AttentionKind.CAUSAL if self._stage.is_last else attention\n",
        tests=("tests/equivalence/test_gradients.py::test_every_gradient_under_pipeline_parallelism[pp2]",),
    ),
    Fault(
        name="pipeline: the norm counts both copies of a tied weight",
        path="toolkit/engine/pipeline.py",
        old="count_once_(stage, tp_rank=topology.tp_rank, copy=copy)",
        new="count_once_(stage, tp_rank=topology.tp_rank)",
        tests=("tests/equivalence/test_gradients.py::test_every_gradient_under_pipeline_parallelism[pp2]",),
    ),
    Fault(
        name="pipeline: the two copies of a tied weight keep their own gradients",
        path="toolkit/engine/pipeline.py",
        old="        return self._tied\n",
        new="        return []\n",
        tests=("tests/equivalence/test_gradients.py::test_every_gradient_under_pipeline_parallelism[pp2]",),
    ),
    Fault(
        name="pipeline: the head weighs nothing in the cut",
        path="toolkit/parallel/division.py",
        old="return max(last + last_stage_extra,",
        new="return max(float(last),",
        tests=("tests/parallel/test_stages.py",),
    ),
    Fault(
        name="packing: a rest exactly as long as the shortest piece is lost",
        path="toolkit/data/rows/packing.py",
        old="return whole + (rest >= min_length)",
        new="return whole + (rest > min_length)",
        tests=("tests/data/test_packing.py",),
    ),
    Fault(
        name="order: the seed is ignored",
        path="toolkit/data/order.py",
        old='keyed_uint64(seed, "order", shuffle, "rows")',
        new='keyed_uint64(0, "order", shuffle, "rows")',
        tests=("tests/data/test_order.py",),
    ),
    Fault(
        name="engine: accumulation is forgotten in the divisor",
        path="toolkit/engine/engine.py",
        old="scales = [num_scaled / (term.targets or 1)",
        new="scales = [self.ranks.data_parallel_size / (term.targets or 1)",
        tests=("tests/equivalence/test_topologies.py",),
    ),
    Fault(
        name="loop: the divisor counts the targets of one rank",
        path="toolkit/training/steps_ahead.py",
        old="StepCounts.summed(by_copy[:, : len(counts)])",
        new="StepCounts.summed(by_copy[:1, : len(counts)])",
        tests=("tests/equivalence/test_topologies.py",),
    ),
    Fault(
        name="checkpoint: the second moment is not the one that was given",
        path="toolkit/checkpoint/write.py",
        old='"exp_avg_sq": {state.name: state.exp_avg_sq for state in states}',
        new='"exp_avg_sq": {state.name: state.exp_avg for state in states}',
        tests=("tests/checkpoint/test_checkpoint_format.py",),
    ),
    Fault(
        name="run file: an optional setting of a plugin without a value is written",
        path="toolkit/objectives/registry.py",
        old='self.settings.model_dump(mode="json", exclude_none=True)',
        new='self.settings.model_dump(mode="json")',
        tests=("tests/run/test_resolve.py",),
    ),
    Fault(
        name="start: nobody looks whether the corpus has its tokenizer",
        path="toolkit/run/checks.py",
        old="if not first.corpus.tokenizer_folder.is_dir():",
        new="if not first.corpus.path.is_dir():",
        tests=("tests/run/test_resolve.py",),
    ),
    Fault(
        name="phases: each begins its rows at 0, on the same data too",
        path="toolkit/run/step_plan.py",
        old="before.append(read[first])",
        new="before.append(0)",
        tests=("tests/run/test_step_plan.py",),
    ),
    Fault(
        name="phases: DeepSpeed counts micro-batches on where their number changes",
        path="toolkit/engine/engine.py",
        old="        engine.micro_steps = 0\n",
        new="",
        tests=("tests/resume/test_phases.py::test_resume_around_every_boundary[1]",),
    ),
    Fault(
        name="phases: stages of a pipeline expect the rows of the phase before",
        path="toolkit/engine/pipeline.py",
        old="            self.deepspeed.reset_activation_shape()\n",
        new="",
        tests=("tests/resume/test_phases.py::test_ranks_and_pipelines_see_the_same",),
    ),
    Fault(
        name="phases: the optimizer is not reset",
        path="toolkit/engine/engine.py",
        old="                state[name].zero_()\n",
        new="                state[name].add_(0)\n",
        tests=("tests/resume/test_phases.py::test_a_phase_equals_a_run_of_its_own",),
    ),
    Fault(
        name="branch: its digest starts over on the same data",
        path="toolkit/training/starting.py",
        old="RunState() if settings.fork is None else state",
        new="RunState(state.step, state.tokens) if settings.fork is None else RunState(state.step, state.tokens)",
        tests=("tests/resume/test_branch.py::test_a_branch_is_the_run_in_one_piece[1-zero0]",),
    ),
    Fault(
        name="run file: rewritten in place, so that a full disk destroys it",
        path="toolkit/run/folder.py",
        old="                atomic_write(path, text)",
        new="                path.write_text(text)",
        tests=("tests/run/test_folder.py",),
    ),
    Fault(
        name="resume: a run of before gets a vocabulary that is rounded up",
        path="toolkit/run/start.py",
        old="        if model.vocab_size is None:\n",
        new="        if model.vocab_size == 0:\n",
        tests=("tests/run/test_corpora.py",),
    ),
    Fault(
        name="resume: one step of data is left out",
        path="toolkit/training/starting.py",
        old="RunState(manifest.step, manifest.tokens, digest",
        new="RunState(manifest.step + 1, manifest.tokens, digest",
        tests=("tests/resume/test_resume.py::test_the_number_of_ranks_may_change",),
    ),
    Fault(
        name="saving: what is written in the background are the engine's own tensors, not copies",
        path="toolkit/engine/optimizer_state.py",
        old="dtype=torch.float32, copy=True",
        new="dtype=torch.float32",
        tests=("tests/training/test_background_saving.py",),
    ),
    Fault(
        name="saving: ranks without a parameter write files",
        path="toolkit/checkpoint/write.py",
        old="        if not states:\n",
        new="        if False:\n",
        tests=("tests/checkpoint/test_checkpoint_format.py::test_a_writer_without_a_parameter_writes_no_file",),
    ),
    Fault(
        name="resume: a rank that cannot read a parameter leaves the others in an exchange",
        path="toolkit/engine/saving.py",
        old="                failures.append(error)\n",
        new="                raise\n",
        tests=("tests/resume/test_layouts.py::test_a_parameter_that_cannot_be_read_is_an_error_behind_all_exchanges",),
    ),
    Fault(
        name="corpora: every rank of a machine looks at the size of every file",
        path="toolkit/data/corpus/corpus.py",
        old='        if sizes == "check":\n',
        new="        if True:\n",
        tests=("tests/data/test_corpus.py",),
    ),
    Fault(
        name="rendezvous: the store of one machine listens to every network",
        path="toolkit/engine/rendezvous.py",
        old="descriptor = socket.create_server((LOOPBACK, port)",
        new='descriptor = socket.create_server(("", port)',
        tests=("tests/engine/test_rendezvous.py",),
    ),
    Fault(
        name="connections: strangers may stay for as long as they like",
        path="toolkit/engine/connections.py",
        old="and time.monotonic() < until",
        new="",
        tests=("tests/engine/test_connections.py",),
    ),
    Fault(
        name="peers: a call that is lost is not made again",
        path="toolkit/engine/connections.py",
        old='            raise TimeoutError(f"{host}',
        new='            pass\n        raise TimeoutError(f"{host}',
        tests=("tests/engine/test_peers.py::test_more_ranks_call_than_the_system_keeps_waiting",),
    ),
    Fault(
        name="groups: each rank makes the groups of all others that are alone",
        path="toolkit/parallel/groups.py",
        old="len(own := ranks_of(topology)) == 1",
        new="len(own := ranks_of(topology)) == 0",
        tests=("tests/parallel/test_groups.py",),
    ),
    Fault(
        name="saving: a writer's error is swallowed, and the checkpoint never appears",
        path="toolkit/engine/saving.py",
        old="self._finished.result()",
        new="self._finished.exception()",
        tests=("tests/training/test_background_saving.py",),
    ),
    Fault(
        name="saving: the run ends before its last checkpoint is written",
        path="toolkit/training/saving.py",
        old="            self.finish(hooks)\n        except ToolkitError as error:\n",
        new="        except ToolkitError as error:\n",
        tests=("tests/training/test_saving.py",),
    ),
    Fault(
        name="phases: queries and keys keep the angles of the first phase",
        path="toolkit/model/encoder.py",
        old="self.settings = self.model.settings = settings",
        new="self.settings = settings",
        tests=("tests/resume/test_phases.py",),
    ),
    Fault(
        name="phases: a checkpoint has the angles of the first phase",
        path="toolkit/checkpoint/manifest.py",
        old=" | self.phase_settings.get(name, {})",
        new="",
        tests=("tests/run/test_branching.py",),
    ),
    Fault(
        name="phases: the position forgets that steps of a batch-size warm-up are smaller",
        path="toolkit/objectives/schedule.py",
        old="read + rows * min(step, steps)",
        new="read + self.full * min(step, steps)",
        tests=("tests/run/test_step_plan.py",),
    ),
    Fault(
        name="spikes: the losses of one phase are compared with those of the phase before it",
        path="toolkit/training/run_state.py",
        old="return self.recent_losses if self.step > phase.start else ()",
        new="return self.recent_losses",
        tests=("tests/training/test_spikes.py",),
    ),
    Fault(
        name="spikes: a resumed run has forgotten the losses before it",
        path="toolkit/training/starting.py",
        old="manifest.losses, manifest.recent_losses",
        new="manifest.losses",
        tests=("tests/training/test_spikes.py",),
    ),
    Fault(
        name="spikes: an update that is to be skipped is made",
        path="toolkit/engine/engine.py",
        old="self._update() if is_applied else self._pass_over()",
        new="self._update()",
        tests=("tests/engine/test_skipped_update.py",),
    ),
    Fault(
        name="resume: the optimizer counts its steps from the start again",
        path="toolkit/engine/optimizer_state.py",
        old="    _make_moments_exist(optimizer, optimizer_step)\n",
        new="    _make_moments_exist(optimizer, 0)\n",
        tests=("tests/resume/test_resume.py::test_the_layout_may_change_between_two_halves",),
    ),
    Fault(
        name="preprocess: every source file is a shard by itself",
        path="toolkit/preprocess/writer/groups.py",
        old="        if number in last:\n            num_bytes = 0",
        new="        last.add(number)",
        tests=("tests/preprocess/test_preprocess_corpus.py",),
    ),
    Fault(
        name="preprocess: an unfinished corpus is resumed with other options",
        path="toolkit/preprocess/writer/folder.py",
        old="changes = key_changes(ledger.key if",
        new="changes = key_changes(key if",
        tests=("tests/preprocess/test_preprocess_restart.py",),
    ),
    Fault(
        name="preprocess: --engine reference keeps shards of the fast backend",
        path="toolkit/preprocess/writer/folder.py",
        old='if settings.engine == "reference" and not ledger.why_reference:',
        new='if settings.engine == "reference" and ledger.why_reference:',
        tests=("tests/preprocess/test_preprocess_backends.py",),
    ),
    Fault(
        name="preprocess: bad rows of groups are judged without those before them",
        path="toolkit/preprocess/unfinished.py",
        old="self._num_rows, self._num_bad = self._num_rows + account.rows, self._num_bad + account.num_bad",
        new="self._num_rows, self._num_bad = account.rows, account.num_bad",
        tests=("tests/preprocess/test_preprocess_groups.py",),
    ),
    Fault(
        name="near-duplicates: documents of a band are alike without a look at them",
        path="toolkit/preprocess/screening/near_duplicates.py",
        old="(rows(one) == rows(other)).mean(axis=1) >= similarity",
        new="(rows(one) == rows(other)).mean(axis=1) >= 0",
        tests=("tests/preprocess/test_screening.py",),
    ),
    Fault(
        name="near-duplicates: a chain of alike documents is two groups",
        path="toolkit/preprocess/screening/near_duplicates.py",
        old="return np.asarray(lowest[labels[firsts]], np.int64)",
        new="return np.asarray(lowest[labels], np.int64)",
        tests=("tests/preprocess/test_screening.py",),
    ),
    Fault(
        name="near-duplicates: a document with a test text makes others duplicates of it",
        path="toolkit/preprocess/screening/documents.py",
        old="first_of_groups(parts, ~holds_test, self.similarity)",
        new="first_of_groups(parts, np.ones_like(holds_test), self.similarity)",
        tests=("tests/preprocess/test_preprocess_dropped.py",),
    ),
    Fault(
        name="near-duplicates: what is left out of a group is not in its key",
        path="toolkit/preprocess/unfinished.py",
        old="if self.screening is None:\n            return {}\n",
        new="if True:\n            return {}\n",
        tests=("tests/preprocess/test_preprocess_dropped.py",),
    ),
    Fault(
        name="test texts: n-grams run from one document into the next",
        path="toolkit/preprocess/screening/grams.py",
        old="sizes = np.maximum(words.counts_N, max(lengths))",
        new="sizes = np.maximum(words.counts_N, 1)",
        tests=("tests/preprocess/test_screening.py",),
    ),
    Fault(
        name="test texts: a short one is found by its first 8 words",
        path="toolkit/preprocess/screening/test_texts.py",
        old="is_its = words.counts_N == length if length",
        new="is_its = words.counts_N >= length if length",
        tests=("tests/preprocess/test_screening.py",),
    ),
    Fault(
        name="preprocess: two processes write one corpus",
        path="toolkit/core/locks.py",
        old="        lock = try_lock(folder / name, timeout=timeout)\n",
        new="        lock = try_lock(folder / name, timeout=timeout)\n        lock and lock.release()\n",
        tests=("tests/preprocess/test_preprocess_restart.py",),
    ),
    Fault(
        name="corpora: a process keeps more files open than it may",
        path="toolkit/data/corpus/files.py",
        old="_MOST_DESCRIPTORS) // _DESCRIPTORS_FOR_EACH",
        new="_MOST_DESCRIPTORS)",
        tests=("tests/data/test_corpus.py",),
    ),
    Fault(
        name="rows: all pieces of a row are one segment",
        path="toolkit/data/rows/windows.py",
        old="segments += [*range(1, last - first + 1), 0]",
        new="segments += [*[1] * (last - first), 0]",
        tests=("tests/data/test_windows.py",),
    ),
    Fault(
        name="digest: segments are hashed as another type",
        path="toolkit/data/order.py",
        old='np.ascontiguousarray(segments_BS, "<i4")',
        new='np.ascontiguousarray(segments_BS, "<i8")',
        tests=("tests/data/test_row_digest.py",),
    ),
    Fault(
        name="checkpoint: a damaged one is taken for the newest",
        path="toolkit/checkpoint/read.py",
        old="            checkpoint = open_unverified(folder)\n            checkpoint.verify()\n",
        new="            checkpoint = open_unverified(folder)\n",
        tests=("tests/checkpoint/test_checkpoint_damage.py",),
    ),
    Fault(
        name="checkpoint: a damaged one of a later step counts among those to keep",
        path="toolkit/checkpoint/retention.py",
        old="if last_written is not None and step > last_written:",
        new="if False:",
        tests=("tests/checkpoint/test_retention.py",),
    ),
    Fault(
        name="checkpoint: moments are deleted that the manifest has",
        path="toolkit/checkpoint/retention.py",
        old="            if manifest.has_moments:",
        new="            if False:",
        tests=("tests/checkpoint/test_retention.py",),
    ),
    Fault(
        name="checkpoint: the best by the losses on another validation corpus is kept",
        path="toolkit/run/metrics.py",
        old='_validation(saved.corpora) == _validation(corpora) and saved.table("eval")',
        new='saved.table("eval")',
        tests=("tests/training/test_saving.py::test_the_best_is_by_losses_on_the_present_validation_corpus",),
    ),
    Fault(
        name="checkpoint: multiples of keep_every are not saved",
        path="toolkit/checkpoint/retention.py",
        old="return self.is_kept(step) or (",
        new="return (",
        tests=("tests/training/test_saving.py",),
    ),
    Fault(
        name="stopping: the signal handlers are not given back",
        path="toolkit/core/signals.py",
        old="for number, handler in handlers.items():",
        new="for number, handler in ():",
        tests=("tests/training/test_stopping.py",),
    ),
    Fault(
        name="loop: an error of one rank is not raised by the others",
        path="toolkit/training/rank_errors.py",
        old="if self._error is not None:\n",
        new="if False:\n",
        tests=("tests/training/test_hooks.py",),
    ),
    Fault(
        name="batching: an objective may write into its input",
        path="toolkit/training/problem.py",
        old="rows.tokens_BS.flags.writeable = rows.segments_BS.flags.writeable = False",
        new="pass",
        tests=("tests/training/test_batching.py",),
    ),
    Fault(
        name="evaluation: the mean over all corpora is one of their means",
        path="toolkit/training/evaluation.py",
        old="[sum(part) for part in zip(*pairs, strict=True)]",
        new="[sum(loss / (count or 1) for loss, count in pairs), len(pairs)]",
        tests=("tests/training/test_evaluation.py::test_the_mean_over_all_counts_every_target_once",),
    ),
    Fault(
        name="evaluation: the last batch has fewer rows, another shape to compile",
        path="toolkit/training/batching.py",
        old="missing = ((0, size - rows_B.size), (0, 0))",
        new="size = max(1, rows_B.size)\n            missing = ((0, size - rows_B.size), (0, 0))",
        tests=("tests/training/test_batching.py",),
    ),
    Fault(
        name="conversion: logits are compared with the wrong attention",
        path="toolkit/conversion/forms.py",
        old="return AttentionKind(self.value)",
        new="return AttentionKind.BIDIRECTIONAL",
        tests=("tests/conversion/test_to_hf.py",),
    ),
    Fault(
        name="preprocess: documents have no end-of-text",
        path="tokenization/tokenizer.py",
        old="own, end = self.own_frame, self.appended_ids\n",
        new="own, end = self.own_frame, self.appended_ids[:0]\n",
        tests=("tests/tokenization/test_tokenizer_encoding.py",),
    ),
    Fault(
        name="preprocess: documents that the tokenizer ends itself end twice",
        path="tokenization/tokenizer.py",
        old="[eod_id] if self.is_eod_given or not self.ends_texts else []",
        new="[eod_id]",
        tests=("tests/tokenization/test_tokenizer_encoding.py",),
    ),
    Fault(
        name="tokenizers: added_tokens.json is not read",
        path="tokenization/special_tokens.py",
        old="            for text, token_id in added.items()\n",
        new="            for text, token_id in dict[str, int]().items()\n",
        tests=("tests/tokenization/test_gpt2_pair.py",),
    ),
    Fault(
        name="export: a text ends with a token that documents did not have (--no-eod)",
        path="tokenization/frame.py",
        old='    if own.back or eos_id is None or not encoding.get("add_eod", True):\n',
        new="    if own.back or eos_id is None:\n",
        tests=("tests/tokenization/test_frame.py",),
    ),
    Fault(
        name="export: an ordinary token is named as pad",
        path="toolkit/conversion/forms.py",
        old="return vocabulary.pad_id if vocabulary.pad_id in vocabulary.special_ids else vocabulary.mask_id",
        new="return vocabulary.pad_id",
        tests=("tests/conversion/test_to_hf.py",),
    ),
    Fault(
        name="learning rate: the warm-up starts at zero, one step late",
        path="toolkit/engine/lr.py",
        old="return settings.peak * (step + 1) / warmup",
        new="return settings.peak * step / warmup",
        tests=("tests/engine/test_lr.py",),
    ),
    Fault(
        name="blend: blocks forget what the blocks before them had",
        path="toolkit/data/order.py",
        old="return corpora_B, slots_B + (before_UC - starts_UC)[which_B, corpora_B]",
        new="return corpora_B, slots_B - starts_UC[which_B, corpora_B]",
        tests=("tests/data/test_blend.py",),
    ),
    Fault(
        name="sources: links to folders are not followed",
        path="toolkit/preprocess/sources/walk.py",
        old="roots += [path for name in folders if os.path.islink(path := os.path.join(folder, name))]",
        new="pass",
        tests=("tests/preprocess/test_preprocess_sources.py",),
    ),
    Fault(
        name="sources: a folder that cannot be read is passed over",
        path="toolkit/preprocess/sources/walk.py",
        old="os.walk(root, onerror=_raise_unreadable)",
        new="os.walk(root)",
        tests=("tests/preprocess/test_preprocess_sources.py",),
    ),
    Fault(
        name="sources: a line that the fast JSON parser refuses is a bad row",
        path="toolkit/preprocess/readers/rows.py",
        old="        return _row_from_doubtful_line(line, text_field)",
        new='        return Row("", Reason.BROKEN_JSON)',
        tests=("tests/preprocess/test_preprocess_json_lines.py",),
    ),
    Fault(
        name="sources: a file and a link to it are both read",
        path="toolkit/preprocess/sources/walk.py",
        old="own = seen.setdefault((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), path)",
        new="own = path",
        tests=("tests/preprocess/test_preprocess_sources.py",),
    ),
    Fault(
        name="holdout: the document decides, not its text, so that doubles part",
        path="toolkit/preprocess/encoding.py",
        old='hashlib.blake2b(text.encode(), digest_size=8, person=b"holdout")',
        new='hashlib.blake2b(b"%d" % id(text), digest_size=8, person=b"holdout")',
        tests=("tests/preprocess/test_preprocess_workers.py",),
    ),
    Fault(
        name="preprocess: workers' results are written in the order in which they end",
        path="toolkit/preprocess/encoding.py",
        old="            waiting.append(future)",
        new="            waiting.appendleft(future)",
        tests=("tests/preprocess/test_preprocess_workers.py",),
    ),
    Fault(
        name="preprocess: a resumed run counts the rows of a source from its first span",
        path="toolkit/preprocess/writer/shard_sequence.py",
        old="self._next_span_rows = self._place.rows_before_span",
        new="self._next_span_rows = 0",
        tests=("tests/preprocess/test_preprocess_workers.py",),
    ),
    Fault(
        name="hub: a listing that fails once is not asked for again",
        path="toolkit/hub.py",
        old="_WAITS_SECONDS = (0.5, 1, 2)",
        new="_WAITS_SECONDS = ()",
        tests=("tests/preprocess/test_preprocess_hub.py::test_listing_waits_too",),
    ),
    Fault(
        name="preprocess: the fast backend is not tried on the input",
        path="toolkit/preprocess/tokenizer_checks.py",
        old="difference = difference or fast.check(piece, expected=ids.result())",
        new="ids.result()",
        tests=("tests/preprocess/test_preprocess_backends.py",),
    ),
    Fault(
        name="fast backend: documents are compared with themselves",
        path="tokenization/fast/backend.py",
        old="difference = first_difference(some, self._tokenizer.encode_batch(some), _select(found, chosen))",
        new="difference = first_difference(some, _select(found, chosen), _select(found, chosen))",
        tests=("tests/tokenization/test_fast.py",),
    ),
    Fault(
        name="grid: of equal learning rates the larger is chosen",
        path="toolkit/experiments/grid/selection.py",
        old="return min(rate for",
        new="return max(rate for",
        tests=("tests/experiments/grid/test_selection.py",),
    ),
    Fault(
        name="grid: a learning rate that lacks a seed is chosen",
        path="toolkit/experiments/grid/selection.py",
        old=(
            "rate: [finished[cell] for cell in members]\n"
            "            for rate, members in rates.items()\n"
            "            if all("
        ),
        new=(
            "rate: [finished[cell] for cell in members if cell in finished]\n"
            "            for rate, members in rates.items()\n"
            "            if any("
        ),
        tests=("tests/experiments/grid/test_selection.py",),
    ),
    Fault(
        name="grid: test scores choose the learning rate",
        path="toolkit/experiments/grid/selection.py",
        old="return score.validation[score.metric]",
        new="return score.test[score.metric]",
        tests=("tests/experiments/grid/test_selection.py",),
    ),
    Fault(
        name="grid: results stand in the order in which cells finished",
        path="toolkit/experiments/grid/cells.py",
        old="for score in sorted(scores, key=lambda score: score.cell))",
        new="for score in scores)",
        tests=("tests/experiments/grid/test_selection.py",),
    ),
    Fault(
        name="grid: a lost worker's cell is not run again",
        path="toolkit/execution/scheduling.py",
        old="                self.pending.insert(0, item)\n",
        new="                pass\n",
        tests=("tests/execution/test_scheduling.py",),
    ),
    Fault(
        name="grid: all cells of a rate have the seed of the settings",
        path="toolkit/experiments/grid/plan.py",
        old='own = {"seed": cell.seed, "learning_rate": cell.learning_rate}',
        new='own = {"learning_rate": cell.learning_rate}',
        tests=("tests/experiments/grid/test_plan.py",),
    ),
    Fault(
        name="grid: a finished cell counts whatever it was declared to be",
        path="toolkit/experiments/grid/plan.py",
        old="if found := self._changes(cell):",
        new="if (found := self._changes(cell)) and outcome.cell != cell:",
        tests=("tests/experiments/grid/test_plan.py",),
    ),
    Fault(
        name="report: validation scores are shown as test scores",
        path="toolkit/experiments/grid/cells.py",
        old="return self.test[self.metric]",
        new="return (self.validation or self.test)[self.metric]",
        tests=("tests/report/test_tables.py",),
    ),
    Fault(
        name="report: a mean is over all learning rates, not the chosen one",
        path="toolkit/report/read/results.py",
        old="if cell.learning_rate == rate]",
        new="if rate is not None]",
        tests=("tests/report/test_tables.py",),
    ),
    Fault(
        name="report: the standard deviation is over n",
        path="toolkit/report/compare/statistics.py",
        old="np.std(samples[0], ddof=1)",
        new="np.std(samples[0], ddof=0)",
        tests=("tests/report/test_statistics.py",),
    ),
    Fault(
        name="report: the interval is one-sided",
        path="toolkit/report/compare/statistics.py",
        old="stats.t.ppf((1 + CONFIDENCE) / 2, degrees)",
        new="stats.t.ppf(CONFIDENCE, degrees)",
        tests=("tests/report/test_statistics.py",),
    ),
    Fault(
        name="report: an average counts data sets by their number of seeds",
        path="toolkit/report/compare/statistics.py",
        old="mean = math.fsum(math.fsum(scores) / len(scores) for scores in samples) / len(samples)",
        new="mean = math.fsum(map(math.fsum, samples)) / sum(nums)",
        tests=("tests/report/test_statistics.py",),
    ),
    Fault(
        name="report: pairs are not of one seed",
        path="toolkit/report/compare/statistics.py",
        old="[first[key] - second[key] for key in keys]",
        new="[a - second[key] for a, key in zip(first.values(), keys)]",
        tests=("tests/report/test_statistics.py",),
    ),
    Fault(
        name="report: Holm's correction does not stay in order",
        path="toolkit/report/compare/statistics.py",
        old="largest = max(largest, min(1.0, (len(tested) - rank) * p))",
        new="largest = min(1.0, (len(tested) - rank) * p)",
        tests=("tests/report/test_statistics.py",),
    ),
    Fault(
        name="report: an average is given where a data set is missing",
        path="toolkit/report/compare/levels.py",
        old="not all(self.scores.get(name) for name in names)",
        new="not any(self.scores.get(name) for name in names)",
        tests=("tests/report/test_tables.py",),
    ),
    Fault(
        name="report: a checkpoint's share is that of the whole schedule",
        path="toolkit/report/read/manifests.py",
        old="min(phase.stop, manifest.step) - phase.start",
        new="phase.stop - phase.start",
        tests=("tests/report/test_manifests.py",),
    ),
    Fault(
        name="report: a continued run tells a share of its own steps",
        path="toolkit/report/read/manifests.py",
        old="        if not manifest.origin:\n            labels[CLM_SHARE]",
        new="        if True:\n            labels[CLM_SHARE]",
        tests=("tests/report/test_manifests.py",),
    ),
    Fault(
        name="report: a pure CLM model is on no line of a mask ratio",
        path="toolkit/report/figures/lines.py",
        old="value in (None, wanted)",
        new="value == wanted",
        tests=("tests/report/test_paper_figures.py",),
    ),
    Fault(
        name="report: any folder is taken for that of a report",
        path="toolkit/report/output_folder.py",
        old="if found and PAGE not in found:",
        new="if not found:",
        tests=("tests/report/test_output_folder.py",),
    ),
    Fault(
        name="report: folders of an earlier report stay",
        path="toolkit/report/output_folder.py",
        old="if (folder / part).is_dir():",
        new="if (unfinished / part).is_dir():",
        tests=("tests/report/test_output_folder.py",),
    ),
    Fault(
        name="ranks: nobody compares what they have opened",
        path="toolkit/training/pretrain.py",
        old="    check_same_inputs(ranks, run.data, beginning.checkpoint, key=beginning.key)\n",
        new="",
        tests=(
            "tests/training/test_shared_inputs.py::test_another_run_folder_or_corpus_is_refused_before_the_first_step",
        ),
    ),
    Fault(
        name="ranks: host exchanges wait no longer than collectives",
        path="toolkit/engine/ranks.py",
        old="self._host_group = _host_group(dist.group.WORLD)",
        new="self._host_group = dist.group.WORLD",
        tests=(
            "tests/engine/test_ranks.py::test_others_wait_for_a_rank_that_works_alone_for_longer_than_a_collective_may_take",
        ),
    ),
    Fault(
        name="run files: one beside its checkpoints starts another run elsewhere",
        path="toolkit/run/load.py",
        old="        check_own_folder(run.folder, path)\n",
        new="        pass\n",
        tests=("tests/run/test_load.py::test_the_file_of_a_moved_run_starts_no_other_run",),
    ),
    Fault(
        name="branch: a ramp that is left on the way ends there",
        path="toolkit/run/branching.py",
        old="planned = phase.planned_steps if phase.planned_steps > steps else None",
        new="planned = None",
        tests=("tests/run/test_branching.py",),
    ),
    Fault(
        name="first weights: a run's folder is its newest checkpoint at every start",
        path="toolkit/run/start.py",
        old='"source": self._checkpoint_at(init.source, settings)',
        new='"source": init.source',
        tests=("tests/training/test_initial_weights.py::test_the_run_file_names_the_checkpoint_of_a_run_that_goes_on",),
    ),
    Fault(
        name="hooks: a run whose log cannot be written ends without saving its state",
        path="toolkit/training/saving.py",
        old="            if state.step != self._saved_step:\n",
        new="            errors.raise_agreed()\n            if state.step != self._saved_step:\n",
        tests=("tests/training/test_one_rank_fails.py::test_a_hook_that_fails_costs_no_step",),
    ),
    Fault(
        name="console: an error of the system while a lost stream is flushed ends the program",
        path="toolkit/core/console.py",
        old="        with self._dropping():\n            self._stream.flush()\n",
        new="        self._stream.flush()\n",
        tests=("tests/core/test_console.py",),
    ),
    Fault(
        name="signals: a terminal that is closed ends a run at once where SIGHUP comes twice",
        path="toolkit/core/signals.py",
        old="number not in (signal.SIGHUP, signal.SIGXCPU)",
        new="True",
        tests=("tests/workflows/test_stop_signals.py",),
    ),
    Fault(
        name="signals: nohup no longer keeps SIGHUP away",
        path="toolkit/core/signals.py",
        old="return always if is_ignored else (*always, signal.SIGHUP)",
        new="return (*always, signal.SIGHUP)",
        tests=(
            "tests/workflows/test_stop_signals.py",
            "tests/training/test_stopping.py",
        ),
    ),
    Fault(
        name="branches: a corpus at another place is another one",
        path="toolkit/run/branching.py",
        old="if not others and named.get(found, place) != place",
        new="if others and named.get(found, place) != place",
        tests=("tests/run/test_branching.py",),
    ),
    Fault(
        name="branches: an objective of the trunk gets the settings of the tail's",
        path="toolkit/run/branching.py",
        old='else f"{name}-to-{step}"',
        new="else name",
        tests=("tests/run/test_branching.py",),
    ),
    Fault(
        name="parting: settings of an objective are not compared",
        path="toolkit/run/parting.py",
        old='found |= _plain(objective.settings.model_dump(mode="json"), place)',
        new="pass",
        tests=("tests/run/test_parting.py",),
    ),
    Fault(
        name="parting: a decay is the same wherever it ends",
        path="toolkit/run/parting.py",
        old="Held((lr.peak, lr.floor, shape, bottom, stretch.planned_stop), shown)",
        new="Held((lr.peak, lr.floor, shape, bottom), shown)",
        tests=("tests/run/test_parting.py",),
    ),
    Fault(
        name="parting: a stable part begins where its warm-up does",
        path="toolkit/run/parting.py",
        old="found.update((stretch.start, stretch.start + warmup, stretch.planned_stop - decay))",
        new="found.update((stretch.start, stretch.start + warmup))",
        tests=("tests/run/test_parting.py",),
    ),
    Fault(
        name="study: the corpora of a run that is adopted are told by their places",
        path="toolkit/experiments/study/plan.py",
        old="there = None if manifest is None or hashes is None else manifest.corpora",
        new="there = None",
        tests=("tests/experiments/study/test_plan.py",),
    ),
    Fault(
        name="parting: sizes of a batch warm-up are looked at where the phase begins",
        path="toolkit/run/parting.py",
        old="found.update(phase.start + stop for stop in (0, *phase.rows.warmup_ends))",
        new="found.add(phase.start)",
        tests=("tests/run/test_parting.py",),
    ),
    Fault(
        name="parting: a mixture is the same wherever it begins",
        path="toolkit/run/parting.py",
        old="Held((phase.start, *((*entry.ends, entry.weight) for entry in phase.mix)), phase.shares)",
        new="Held(tuple((*entry.ends, entry.weight) for entry in phase.mix), phase.shares)",
        tests=("tests/run/test_parting.py",),
    ),
    Fault(
        name="parting: a warm-up of the rate is the same wherever it begins",
        path="toolkit/run/parting.py",
        old="return Held((lr.peak, stretch.start, top), shown",
        new="return Held((lr.peak, top), shown",
        tests=("tests/run/test_parting.py",),
    ),
    Fault(
        name="parting: data of a phase are those of the run",
        path="toolkit/run/parting.py",
        old="        first = self.run.plan.first_on_data[number]\n",
        new="        first = 0\n",
        tests=("tests/run/test_parting.py",),
    ),
    Fault(
        name="parting: where a phase ends says nothing of a ramp in it",
        path="toolkit/run/parting.py",
        old="any(map(_changes, objectives))",
        new="False",
        tests=("tests/run/test_parting.py",),
    ),
    Fault(
        name="mixtures: rows are dealt in turn",
        path="toolkit/training/problem.py",
        old="np.cumsum(rows_P), places_G,",
        new="np.cumsum(rows_P), np.arange(num_rows),",
        tests=("tests/training/test_batching.py",),
    ),
    Fault(
        name="mixtures: an objective with a rest gets no row of it",
        path="toolkit/objectives/mixture.py",
        old="owed = [before + part % unit for",
        new="owed = [part % unit for",
        tests=("tests/objectives/test_mixture.py",),
    ),
    Fault(
        name="mixtures: the weights of targets are rounded to the dtype of hidden states",
        path="toolkit/model/kernels/cross_entropy.py",
        old="torch.where(labels_N >= 0, weights_N, 0)",
        new="torch.where(labels_N >= 0, weights_N, 0).to(hidden_ND.dtype)",
        tests=("tests/model/test_loss.py",),
    ),
    Fault(
        name="mixtures: causal rows see what follows",
        path="toolkit/model/attention.py",
        old="rows.kind, rows.layout",
        new="AttentionKind.BIDIRECTIONAL, rows.layout",
        tests=("tests/model/test_attention.py",),
    ),
    Fault(
        name="forks: one step too late is taken for the same run",
        path="toolkit/run/start.py",
        old="if found.step < fork.step:",
        new="if found.step + 1 < fork.step:",
        tests=("tests/resume/test_fork.py::test_a_run_that_parted_earlier_is_refused",),
    ),
    Fault(
        name="forks: the lines of an earlier attempt stay beside those of a fork's fresh start",
        path="toolkit/training/assembly.py",
        old="resumed_step=None if state.step == run.plan.first_step else state.step)",
        new="resumed_step=None if state.step == 0 else state.step)",
        tests=("tests/resume/test_fork.py",),
    ),
    Fault(
        name="export: a text ends with the tokenizer's end, not with the one that documents had (--eod)",
        path="toolkit/conversion/exported_tokenizer.py",
        old="    if frame != own:\n",
        new="    if frame.front != own.front:\n",
        tests=("tests/conversion/test_to_hf.py",),
    ),
    Fault(
        name="export: what comes behind the mask is read as a new text",
        path="toolkit/conversion/masked_texts.py",
        old="    return _with_flags(changed, mask_id, normalized=True)\n",
        new="    return _with_flags(changed, mask_id, normalized=False)\n",
        tests=("tests/conversion/test_masked_texts.py",),
    ),
    Fault(
        name="import: a model that was not trained here ends texts as documents would",
        path="toolkit/conversion/tokenizer.py",
        old="_RULES = EncodingRules(add_eod=False)\n",
        new="_RULES = EncodingRules()\n",
        tests=("tests/conversion/test_from_hf.py",),
    ),
    Fault(
        name="adopt: the frame is the tokenizer's, whatever the documents have",
        path="toolkit/preprocess/adoption.py",
        old="            loaded.made_with(most_common_frame(frames))\n",
        new="            loaded.made_with(loaded.frame)\n",
        tests=("tests/preprocess/test_adoption.py",),
    ),
    Fault(
        name="run: corpora whose documents have different ids around them are taken together",
        path="toolkit/run/checks.py",
        old="_check_frames, _check_vocabulary",
        new="_check_vocabulary",
        tests=("tests/run/test_corpora.py",),
    ),
    Fault(
        name="fine-tuning: parts of a batch weigh alike, whatever targets they have",
        path="toolkit/finetuning/trainer.py",
        old='return parts, sum(self._task.num_targets(part["labels"]) for part in parts)',
        new='return parts, len(parts) * self._task.num_targets(parts[-1]["labels"])',
        tests=("tests/finetuning/test_trainer.py::test_a_batch_in_parts_is_the_same_update",),
    ),
    Fault(
        name="fine-tuning: the validation split that is cut off the training split stays in it",
        path="toolkit/finetuning/protocol.py",
        old="Split.TRAIN: kept, Split.VALIDATION: held_out",
        new="Split.VALIDATION: held_out",
        tests=("tests/finetuning/test_paper.py",),
    ),
    Fault(
        name="fine-tuning: the F1 of a single label counts the rows without it",
        path="toolkit/finetuning/sc/labels.py",
        old='"labels": [1] if expected.shape[1] == 1 else None',
        new='"labels": None',
        tests=("tests/finetuning/sc/test_label_metrics.py",),
    ),
    Fault(
        name="retrieval: a document with the query's id is left out, whatever its text",
        path="toolkit/finetuning/ir/beir.py",
        old='return self.queries[query] in (found.text, found.joined(" "))',
        new="return bool(found)",
        tests=("tests/finetuning/ir/test_retrieval.py::test_a_query_that_is_a_document_does_not_find_itself",),
    ),
    Fault(
        name="fine-tuning: a grid's steps turn off the one pass of the paper's runs",
        path="toolkit/finetuning/named/datasets.py",
        old='if "epochs" in self.paper_settings and "steps" in shared:',
        new='if "epochs" in self.paper_settings and "epochs" in shared:',
        tests=("tests/finetuning/named/test_named.py::test_the_papers_settings_are_defaults_under_its_protocol",),
    ),
    Fault(
        name="fine-tuning: the baseline is of the usual metric, not of the one that was named",
        path="toolkit/finetuning/sc/task.py",
        old="return self.score(data, {Split.TEST: rows})[Split.TEST][self.metric]",
        new="return self.score(data, {Split.TEST: rows})[Split.TEST][self.metric_names[0]]",
        tests=("tests/finetuning/sc/test_labels.py::test_the_baseline_is_of_the_main_metric",),
    ),
    Fault(
        name="report: what a grid declares and has no result is not told",
        path="toolkit/report/read/results.py",
        old="        missing += missing_cells(grid, file, found)\n",
        new="        missing_cells(grid, file, found)\n",
        tests=("tests/report/test_completeness.py",),
    ),
    Fault(
        name="report: the answer that reads no text may be the best model",
        path="toolkit/report/compare/tables.py",
        old="isinstance(cell, MeanScore) and not cell.is_reference]",
        new="isinstance(cell, MeanScore)]",
        tests=("tests/report/test_tables.py",),
    ),
    Fault(
        name="report: a baseline without a pretraining seed vanishes",
        path="toolkit/report/compare/levels.py",
        old="    rows += [_configuration(row.name, [row], Seeds.NONE) for row in _without_seed(models)]\n",
        new="",
        tests=("tests/report/test_comparisons.py",),
    ),
    Fault(
        name="report: models that differ in several labels are compared",
        path="toolkit/report/compare/comparisons.py",
        old="        if is_alike and first.labels[axis]",
        new="        if first.labels[axis]",
        tests=("tests/report/test_comparisons.py",),
    ),
    Fault(
        name="report: the spread over rates leans towards those with more seeds",
        path="toolkit/report/figures/rate_pictures.py",
        old="list(map(_on_shared_seeds, found))",
        new="list(found)",
        tests=("tests/report/test_pictures.py",),
    ),
    Fault(
        name="kernels: a package that fails in a way nobody thought of ends the run",
        path="toolkit/model/kernels/choice.py",
        old="    except Exception as error:\n",
        new="    except (ImportError, OSError, RuntimeError) as error:\n",
        tests=("tests/model/test_kernels.py",),
    ),
    Fault(
        name="kernels: what is chosen is never called before the first step",
        path="toolkit/model/kernels/choice.py",
        old="        try_kernel(torch_flash, device, dtype, head_size, window)\n",
        new="",
        tests=("tests/model/test_kernels.py",),
    ),
    Fault(
        name="kernels: a window is tried on stretches that it covers",
        path="toolkit/model/kernels/trial.py",
        old="    stretch = 3 * (window or _THIRD)\n",
        new="    stretch = min(16, window or _THIRD)\n",
        tests=("tests/model/test_kernels.py",),
    ),
    Fault(
        name="kernels: rows of both kinds call the kernel that was passed over",
        path="toolkit/model/attention.py",
        old="attend(query, key, value, rows.kind, rows.layout, rows.window, kernel=kernel)",
        new="attend(query, key, value, rows.kind, rows.layout, rows.window)",
        tests=("tests/model/test_kernels.py", "tests/training/test_trials.py"),
    ),
    Fault(
        name="a start: a rank that has no compiler is eager alone",
        path="toolkit/training/building.py",
        old="        if (reason := agree(ranks, found)) is not None:\n",
        new="        if (reason := found) is not None:\n",
        tests=("tests/training/test_trials.py",),
    ),
    Fault(
        name="a start: smaller micro-batches are as many as the larger ones were",
        path="toolkit/run/division.py",
        old='"gradient_accumulation_steps": batch.accumulation}',
        new='"gradient_accumulation_steps": division.batch.accumulation}',
        tests=("tests/training/test_memory_trial.py",),
    ),
    Fault(
        name="a start: a larger machine changes the micro-batch of a run",
        path="toolkit/run/division.py",
        old="return was.micro_batch_rows if now",
        new="return None if now",
        tests=("tests/run/test_forecast.py::test_a_cpu_with_little_memory_takes_smaller_micro_batches",),
    ),
    Fault(
        name="compiled blocks: ZeRO stage 3 breaks their graphs unasked",
        path="toolkit/run/division.py",
        old="return zero_stage(ds_config) < 3 if train.compile is None",
        new="return True if train.compile is None",
        tests=("tests/run/test_gpu_choices.py::test_blocks_whose_weights_are_gathered_inside_are_compiled_if_asked",),
    ),
    Fault(
        name="csv: rows that a quotation mark swallowed count as one bad row",
        path="toolkit/preprocess/readers/delimited.py",
        old="            if row.reason is Reason.WRONG_COLUMNS and last > first:",
        new="            if False:",
        tests=("tests/preprocess/test_preprocess_delimited.py",),
    ),
    Fault(
        name="sources: a folder that is not mounted is passed over behind **",
        path="toolkit/preprocess/sources/walk.py",
        old="            for path in filter(is_broken_link, unknown):",
        new="            for path in ():",
        tests=("tests/preprocess/test_preprocess_sources.py::test_a_link_to_a_folder_that_is_not_mounted_is_an_error",),
    ),
    Fault(
        name="sources: one without a document is an error only if it is most of all",
        path="toolkit/preprocess/writer/writing.py",
        old="        check_sources(_accounts(group, sequence, broken), settings, broken)",
        new="        assert broken is None",
        tests=("tests/preprocess/test_judging.py",),
    ),
    Fault(
        name="sources: what a killed run counted of a source is forgotten",
        path="toolkit/preprocess/writer/shard_sequence.py",
        old="self.tally.sources.setdefault(name, Account())",
        new="self.tally.sources.__setitem__(name, Account()) or self.tally.sources[name]",
        tests=("tests/preprocess/test_preprocess_restart.py",),
    ),
    Fault(
        name="sources: one that is left out moves the groups behind it",
        path="toolkit/preprocess/sources/find.py",
        old="    return [replace(sources[name], is_excluded=name in excluded) for name in names]",
        new="    return [sources[name] for name in names if name not in excluded]",
        tests=("tests/preprocess/test_preprocess_groups.py",),
    ),
    Fault(
        name="sources: a glob passes over links to nothing",
        path="toolkit/preprocess/sources/walk.py",
        old="            broken |= set(filter(is_broken_link, found))",
        new="",
        tests=("tests/preprocess/test_preprocess_sources.py::test_a_link_to_a_folder_that_is_not_mounted_is_an_error",),
    ),
    Fault(
        name="adopt: a pair and a link to it are both taken",
        path="toolkit/preprocess/adoption.py",
        old='for path, _ in each_once([f"{prefix}.bin" for prefix in found], left_out)]',
        new='for path in (f"{prefix}.bin" for prefix in found)]',
        tests=("tests/preprocess/test_adoption.py::test_a_pair_with_several_names_is_taken_once",),
    ),
    Fault(
        name="shards: a ledger names files whose names are not on the disk yet",
        path="toolkit/data/corpus/shards.py",
        old="            sync(self._idx.parent)",
        new="            pass",
        tests=("tests/data/test_shards.py::test_both_names_are_forced_to_the_disk",),
    ),
    Fault(
        name="execution: an item is run before what it needs",
        path="toolkit/execution/scheduling.py",
        old="if claim in (None, _claim(item)) and self._unfinished.isdisjoint(item.needs)",
        new="if claim in (None, _claim(item))",
        tests=("tests/execution/test_scheduling.py",),
    ),
    Fault(
        name="grid: a training is given to two workers",
        path="toolkit/execution/scheduling.py",
        old="taken = {*self._claims.values(), *(name",
        new="taken = {*(name",
        tests=("tests/execution/test_scheduling.py",),
    ),
    Fault(
        name="grid: a diverged cell stays one though it is declared otherwise now",
        path="toolkit/experiments/grid/plan.py",
        old="return place.score if diverged is None or self._changes(cell) else diverged",
        new="return place.score if diverged is None else diverged",
        tests=(
            "tests/experiments/grid/test_plan.py::test_a_diverged_cell_is_tried_again_where_it_is_declared_otherwise",
        ),
    ),
    Fault(
        name="grid: cells of different settings share a training",
        path="toolkit/experiments/grid/plan.py",
        old="json.dumps([cell.model, cell.kind, settings, data])",
        new="json.dumps([cell.model, cell.kind, data])",
        tests=("tests/experiments/grid/test_plan.py::test_the_papers_grid_is_resolved_without_a_download",),
    ),
    Fault(
        name="quickstart: what the start of a run chose is another setting when the job is started again",
        path="toolkit/workflows/quickstart/stages.py",
        old="Start(newest.manifest).keep_choices(data.run).settings",
        new="data.run.settings",
        tests=("tests/workflows/quickstart/test_stages.py::test_everything_is_made_once",),
    ),
    Fault(
        name="fine-tuning: weights are taken that were trained on other inputs",
        path="toolkit/finetuning/training_folder.py",
        old='_open(folder, {**declared, "start": _digest(network, inputs)})',
        new="_open(folder, declared)",
        tests=("tests/finetuning/test_cell.py::test_trained_weights_are_taken_for_the_same_start_and_inputs_alone",),
    ),
    Fault(
        name="hashes: a file that was changed under its old time counts as the same",
        path="toolkit/core/cache.py",
        old="mark = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]",
        new="mark = [status.st_size, status.st_mtime_ns, status.st_ino]",
        tests=("tests/core/test_known_hashes.py",),
    ),
)


def misfits(faults: Iterable[Fault], root: Path = ROOT) -> list[str]:
    """Faults that no longer fit the source: moved text, missing tests, or a replacement that is not Python."""
    problems = []
    for fault in faults:
        source = (root / fault.path).read_text(encoding="utf-8") if (root / fault.path).is_file() else ""
        if (times := source.count(fault.old)) != 1:
            problems.append(f"{fault.name}: {fault.path} has its text {times} times, not once: {fault.old!r}")
            continue
        problems += [
            f"{fault.name}: there is no {test}" for test in fault.tests if not (root / test.split("::")[0]).is_file()
        ]
        try:
            compile(source.replace(fault.old, fault.new), fault.path, "exec")
        except SyntaxError as error:
            problems.append(f"{fault.name}: with it, {fault.path} is not Python any more: {error}")
    return problems


def _copy_tree(target: Path) -> Path:
    """The source without caches and without the environment."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).is_file():
            shutil.copy(ROOT / name, target / name)
    return target


def _environment(copy: Path) -> dict[str, str]:
    # No bytecode: it is told apart by size and second, and a fault may keep both.
    mine = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    # A test that takes long has noticed nothing.
    mine["TEST_CPU_SECONDS"] = "inf"
    return {**os.environ, **mine}


def _run_tests(copy: Path, tests: Sequence[str], *, seconds: float) -> tuple[int | None, str]:
    """Exit status of pytest (None: it hung) and what it printed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=_environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # Tests start processes of their own; the session is theirs alone.
        os.killpg(process.pid, 9)
        return None, process.communicate()[0]
    return process.returncode, output


def _plant(fault: Fault, copy: Path) -> tuple[bool, str]:
    """Whether the tests notice, and one line about it."""
    path, started = copy / fault.path, time.monotonic()
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(fault.old, fault.new), encoding="utf-8")
    try:
        status, output = _run_tests(copy, fault.tests, seconds=SECONDS_FOR_ONE_FAULT)
    finally:
        path.write_text(original, encoding="utf-8")
    seconds = f"{time.monotonic() - started:5.1f} s"
    if status == 1:
        by = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), "").split(" - ")[0]
        return True, f"caught  {seconds}  {fault.name}  ({by})"
    why = {0: "all tests passed", None: "the tests hung"}.get(status, f"pytest left with {status}:\n{output[-2000:]}")
    return False, f"MISSED  {seconds}  {fault.name}  ({why})"


def _imports_the_copy(copy: Path) -> bool:
    code = "import toolkit, tokenization; print(toolkit.__file__, tokenization.__file__)"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env=_environment(copy), capture_output=True, text=True, check=True
    )
    return all(name.startswith(str(copy)) for name in finished.stdout.split())


def _failing_without_faults(copies: Sequence[Path], faults: Sequence[Fault]) -> list[str]:
    """What fails before any fault is planted; such tests would seem to catch everything."""
    tests = sorted({test for fault in faults for test in fault.tests})
    shares = [tests[number :: len(copies)] for number in range(len(copies))]
    with ThreadPoolExecutor(len(copies)) as pool:
        results = pool.map(
            lambda pair: _run_tests(*pair, seconds=SECONDS_FOR_ALL_TESTS) if pair[1] else (0, ""),
            zip(copies, shares, strict=True),
        )
    return [f"{output}\n(status {status}; None: out of time)" for status, output in results if status != 0]


def plant_all(faults: Sequence[Fault]) -> int:
    """Plant them all; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="planted-faults-") as folder:
        copies = [_copy_tree(Path(folder).resolve() / str(number)) for number in range(WORKERS)]
        assert all(_imports_the_copy(copy) for copy in copies), "tests would run on another checkout"
        if failing := _failing_without_faults(copies, faults):
            print("The tests fail without any fault:\n", *failing, sep="\n")
            return 2
        free: SimpleQueue[Path] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def plant_one(fault: Fault) -> bool:
            copy = free.get()
            try:
                is_caught, line = _plant(fault, copy)
            finally:
                free.put(copy)
            print(line, flush=True)
            return is_caught

        with ThreadPoolExecutor(WORKERS) as pool:
            num_caught = sum(pool.map(plant_one, faults))
    needed = len(faults) - int(ALLOWED_MISSES * len(faults))
    print(f"{num_caught} of {len(faults)} faults caught; {needed} are needed.")
    return 0 if num_caught >= needed else 1


def drawn(faults: Sequence[Fault], number: int, *, commit: str) -> list[Fault]:
    """So many of the faults, equal ones for equal commits."""
    return random.Random(commit).sample(faults, min(number, len(faults)))


def _commit() -> str:
    """The one that is checked out; empty where git cannot tell."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="plant only faults with one of these in their name")
    parser.add_argument("--sample", type=int, help="plant only so many of them, drawn by the commit")
    parser.add_argument("--check", action="store_true", help="plant nothing; see that every fault fits the source")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if not arguments.words or any(word in fault.name for word in arguments.words)]
    if arguments.sample is not None:
        chosen = drawn(chosen, arguments.sample, commit=_commit())
    if problems := misfits(chosen):
        print("These faults no longer fit the source; repair them in tests/planted_faults.py:", *problems, sep="\n")
        return 2
    return 0 if arguments.check else plant_all(chosen)


if __name__ == "__main__":
    sys.exit(main())
