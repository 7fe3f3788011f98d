"""What the labelled set gives to a method without any network: counts of words and pairs of words."""

from pathlib import Path

from toolkit.finetuning.examples import to_examples
from toolkit.finetuning.tables import read_table

_INVERSE_PENALTIES = (1.0, 10.0, 100.0)


def bag_of_words_accuracy(labelled: dict[str, Path]) -> float:
    """Test accuracy of logistic regression on TF-IDF of words and their pairs, its penalty chosen by validation.

    Args:
        labelled: files with the columns text and label, by split: train, validation, test.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = {}, {}
    for split, path in labelled.items():
        examples = to_examples(read_table(path), text_columns=("text",), label_column="label")
        texts[split] = [example.text for example in examples]
        labels[split] = [example.label for example in examples]
    candidates = [
        make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=penalty, max_iter=1000)).fit(
            texts["train"], labels["train"]
        )
        for penalty in _INVERSE_PENALTIES
    ]
    best = max(candidates, key=lambda candidate: candidate.score(texts["validation"], labels["validation"]))
    return float(best.score(texts["test"], labels["test"]))
