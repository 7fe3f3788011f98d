"""Sequence classification (task `sc`): one label for a text or a pair of texts.

Read the files -> fix the set of labels from the training file -> load the encoder and draw a head -> train -> predict
the validation and the test file -> write the model, the predictions and the scores.
"""

import inspect
import json
from collections import Counter
from pathlib import Path

from safetensors import SafetensorError
from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase, set_seed

from toolkit.core.console import console, quiet_transformers
from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.finetuning.classifier import encoder_of, new_classifier, save_classifier
from toolkit.finetuning.examples import Example, LabelSet, text_columns_of, to_examples
from toolkit.finetuning.inputs import EncodedExamples, InputBuilder, padding_collator
from toolkit.finetuning.run import (
    SEQUENCE_CLASSIFICATION_METRIC,
    FinetuningResult,
    FinetuningSettings,
    Initialization,
    classification_scores,
    write_predictions,
    write_result,
)
from toolkit.finetuning.source import longest_input, model_loading, open_source
from toolkit.finetuning.tables import read_table
from toolkit.finetuning.trainer import predict, train_classifier

_TRAIN, _VALIDATION, _TEST = "train", "validation", "test"


def finetune_sequence_classification(
    model: str | Path,
    *,
    train: Path,
    test: Path,
    output: Path,
    validation: Path | None = None,
    settings: FinetuningSettings | None = None,
    initialization: Initialization = Initialization.PRETRAINED,
    model_name: str | None = None,
) -> FinetuningResult:
    """Fine-tune an encoder on labelled texts and evaluate it.

    Args:
        model: folder or hub id of a Hugging Face encoder.
        train: `.tsv`, `.csv`, `.jsonl` or `.parquet`; its labels are the classes.
        test: evaluated at the end.
        output: folder that gets `result.json`, `predictions.jsonl` (one row per test row, in order) and `model/`.
        validation: evaluated at the end as well, if given.
        settings: None for the defaults.
        initialization: `RANDOM` trains a twin of the same configuration whose weights are drawn from the seed.
        model_name: name of the model in the results, if not `model`.

    Raises:
        UserError: a file, a column, a label or the model does not fit; nothing has been trained then.
        NonFiniteError: the training diverged.
    """
    settings = settings or FinetuningSettings()
    files = {_TRAIN: train, _TEST: test} | ({} if validation is None else {_VALIDATION: validation})
    examples = _read(files, settings)
    labels = _label_set(files, examples)
    config, tokenizer = open_source(str(model))
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"could not create the output folder {output}: {error.strerror}. Choose another one (--output)."
        ) from error

    set_seed(settings.seed)
    classifier = _load(str(model), config, labels=labels, initialization=initialization)
    encoded = _encode(files, examples, classifier=classifier, tokenizer=tokenizer, labels=labels, settings=settings)
    collator = padding_collator(tokenizer)
    train_classifier(classifier, encoded[_TRAIN], collator=collator, settings=settings)

    answers = {
        name: predict(classifier, encoded[name], collator=collator, batch_rows=settings.batch_rows).tolist()
        for name in files
        if name != _TRAIN
    }
    [(majority, _)] = Counter(encoded[_TRAIN].classes).most_common(1)
    scores = {name: classification_scores(encoded[name].classes, answers[name]) for name in answers}
    result = FinetuningResult(
        task="sc",
        model=model_name or str(model),
        dataset=train.resolve().parent.name if train.stem == _TRAIN else train.stem,
        initialization=initialization,
        seed=settings.seed,
        learning_rate=settings.learning_rate,
        steps=settings.steps,
        metric=SEQUENCE_CLASSIFICATION_METRIC,
        validation=scores.get(_VALIDATION),
        test=scores[_TEST],
        majority=encoded[_TEST].classes.count(majority) / len(encoded[_TEST].classes),
    )
    _save(classifier, output / "model", tokenizer=tokenizer, labels=labels)
    pairs = zip(answers[_TEST], examples[_TEST], strict=True)
    write_predictions(({"prediction": labels.labels[answer], "label": row.label} for answer, row in pairs), output)
    write_result(result, output)
    return result


def _read(files: dict[str, Path], settings: FinetuningSettings) -> dict[str, list[Example]]:
    tables = {name: read_table(path) for name, path in files.items()}
    columns = settings.text_columns or text_columns_of(tables[_TRAIN])
    return {
        name: to_examples(table, text_columns=columns, label_column=settings.label_column)
        for name, table in tables.items()
    }


def _label_set(files: dict[str, Path], examples: dict[str, list[Example]]) -> LabelSet:
    labels = LabelSet([example.label for example in examples[_TRAIN]])
    if len(labels) < 2:
        raise UserError(
            f"{files[_TRAIN]}: every row has the label {labels.labels[0]!r}, but at least two classes are needed. "
            "Add rows of another class, or choose another column with --label-column."
        )
    for name, path in files.items():
        for number, example in enumerate(examples[name], start=1):
            if example.label not in labels:
                known = ", ".join(map(repr, labels.labels[:10])) + (", ..." if len(labels) > 10 else "")
                raise UserError(
                    f"{path}, row {number}: the label {example.label!r} does not occur in the training file "
                    f"{files[_TRAIN]}, which has {known}. Remove the row, or add training rows with that label."
                )
    return labels


def _load(model: str, config: PretrainedConfig, *, labels: LabelSet, initialization: Initialization) -> nn.Module:
    config.id2label = {index: str(label) for index, label in enumerate(labels.labels)}
    config.label2id = {str(label): index for index, label in enumerate(labels.labels)}
    with model_loading(model):
        classifier, missing = new_classifier(model, config, initialization=initialization)
    if missing:
        raise UserError(
            f"could not load {model}: {counted(len(missing), 'weight')} of the encoder missing (first: {missing[0]}). "
            "Download it again, or use another one."
        )
    return classifier


def _encode(
    files: dict[str, Path],
    examples: dict[str, list[Example]],
    *,
    classifier: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    labels: LabelSet,
    settings: FinetuningSettings,
) -> dict[str, EncodedExamples]:
    longest = longest_input(encoder_of(classifier), tokenizer)
    max_length = min(longest, settings.max_length or longest)
    accepted = frozenset(inspect.signature(encoder_of(classifier).forward).parameters)
    build = InputBuilder(tokenizer, max_length=max_length, accepted=accepted)
    encoded: dict[str, EncodedExamples] = {}
    for name, path in files.items():
        rows, num_cut = build(examples[name])
        encoded[name] = EncodedExamples(rows, [labels.index(example.label) for example in examples[name]])
        encoded[name].check_not_empty(str(path))
        if num_cut:
            console().print(f"{path}: {num_cut:,} of {len(rows):,} texts were truncated to {max_length:,} tokens.")
    return encoded


def _save(classifier: nn.Module, folder: Path, *, tokenizer: PreTrainedTokenizerBase, labels: LabelSet) -> None:
    try:
        with quiet_transformers():
            save_classifier(classifier, folder)
        tokenizer.save_pretrained(folder)
        # The label of each class number, with its type.
        (folder / "labels.json").write_text(json.dumps(labels.labels, ensure_ascii=False) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"could not write the model to {folder}: {reason}. Free space, or choose another folder (--output)."
        ) from error
