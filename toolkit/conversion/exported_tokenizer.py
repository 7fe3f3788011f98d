"""Tokenizer files of an exported folder."""

from pathlib import Path

from tokenization.backend import framing_post_processor
from tokenization.frame import ENCODING_FILE, Frame, post_processor_frame, read_document_frame
from toolkit.checkpoint.read import Checkpoint
from toolkit.conversion.forms import ExportForm, exported_pad_id
from toolkit.conversion.masked_texts import with_mask_as_trained
from toolkit.core.files import copy_files
from toolkit.model_folder import Library, read_json, write_tokenizer

_CONFIG, _JSON = "tokenizer_config.json", "tokenizer.json"


def export_tokenizer(
    folder: Path, source: Checkpoint, *, form: ExportForm, longest: int, library: Library
) -> tuple[str, ...]:
    """Copy the tokenizer into `folder`, adapt it to the model, and return notes on differences from training.

    - The model classes take no token types; a text may be as long as the model's positions.
    - If the tokenizer names no pad token, the token of `exported_pad_id` is named, since a batch could not be padded
      otherwise.
    - For an encoder, a text gets the frame that documents had in training; for a model that was never trained here,
      the tokenizer's own frame. A decoder continues a text: nothing comes after it.
    - For sentence-transformers, which pools the tokens of a text, a text without any frame gets an end.
    - For an encoder, texts with masks are tokenized as in training, where the mask replaced tokens of a text.
    """
    from tokenizers import Tokenizer

    copy_files(source.tokenizer_folder, folder, source.tokenizer_files)
    vocabulary = source.manifest.vocabulary
    config, content = read_json(folder / _CONFIG), read_json(folder / _JSON)
    backend = Tokenizer.from_file(str(folder / _JSON))
    pad_id = exported_pad_id(vocabulary)
    if config.get("pad_token") is None and pad_id is not None:
        config["pad_token"] = backend.id_to_token(pad_id)
    own, is_encoder = post_processor_frame(backend), form is ExportForm.BIDIRECTIONAL
    frame = read_document_frame(folder, backend, eos_id=vocabulary.eos_id) if is_encoder else Frame(own.front)
    if library == "sentence-transformers" and frame == Frame() and vocabulary.eos_id is not None:
        frame = Frame(back=(vocabulary.eos_id,))
    (folder / ENCODING_FILE).unlink(missing_ok=True)
    difference = None
    if frame != own:
        content["post_processor"] = framing_post_processor(backend, front=frame.front, back=frame.back)
    if is_encoder and vocabulary.mask_id is not None:
        content, difference = with_mask_as_trained(content, vocabulary.mask_id)
    write_tokenizer(folder, content, config=config, longest=longest, inputs=["input_ids", "attention_mask"])
    return () if difference is None else (difference,)
