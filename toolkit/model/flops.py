"""How much arithmetic training is worth: useful floating-point operations, counted from shapes alone.

Useful means what the objective asks for: no padding, the head at the targets only, attention inside segments only
and, where it is causal, only backwards. A multiplication and an addition are two operations, and the backward pass
costs twice the forward pass, so each use of a weight in a step counts 6. What an implementation spends on top
(a wasted half of a causal product, activations computed twice) does not count, and what it saves (the last block at
the targets only) still does: the number belongs to the model and the data, so rates of two implementations compare.
"""

from toolkit.model.config import ModelSettings
from toolkit.model.presets import parameter_counts

_PER_WEIGHT = 6
# Scores and mixed values: two products of H x E numbers for each pair.
_PER_PAIR_AND_NUMBER = 12


def training_flops(settings: ModelSettings, *, tokens: float, targets: float, pairs: float) -> float:
    """Useful floating-point operations of forward and backward passes over some positions.

        6 x (parameters of the body) x tokens  +  6 x V x D x targets  +  12 x layers x H x E x pairs

    Args:
        settings: the shape, with its vocabulary size.
        tokens: positions that are not padding.
        targets: positions at which the head is needed.
        pairs: (query, key) pairs that see each other. With tokens = 1 this is the attended length: positions that
            a position sees in the mean.

    Raises:
        SettingsError: the vocabulary size is not known yet.
    """
    counts = parameter_counts(settings)
    attention_width = settings.num_attention_heads * settings.head_size
    weights = counts.body * tokens + counts.embedding * targets
    return _PER_WEIGHT * weights + _PER_PAIR_AND_NUMBER * settings.num_hidden_layers * attention_width * pairs
