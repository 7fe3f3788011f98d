"""The canonical checkpoint: safetensors by Hugging Face name and a manifest; it is complete or absent.

A folder `step-NNNNNNNN` holds, for each writing rank, the fp32 weights and both AdamW moments (`weights-…`,
`exp_avg-…`, `exp_avg_sq-…`), the tokenizer in `tokenizer/`, and `manifest.json` with the state of the run and the hash
of every file. It does not depend on the number of ranks or the ZeRO stage, and is read without a process group,
DeepSpeed or pickle. Settings, manifest and folder names need no torch.
"""
