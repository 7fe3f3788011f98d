"""The shape of a model."""

from pydantic import Field, model_validator

from toolkit.core.settings import Settings

__all__ = ["ModelSettings"]


class ModelSettings(Settings):
    """The shape of an encoder. The names are those of a Hugging Face Llama or EuroBERT configuration."""

    vocab_size: int | None = Field(default=None, ge=1)
    """Entries in the embedding and in the head, the mask token included. Not given: as many as the tokenizer has."""
    hidden_size: int = Field(ge=1)
    """D, the width of the model."""
    intermediate_size: int = Field(ge=1)
    """F, the inner width of the feed-forward layers."""
    num_hidden_layers: int = Field(ge=1)
    """Number of blocks."""
    num_attention_heads: int = Field(ge=1)
    """H, query heads."""
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """K, key and value heads, each shared by H / K query heads. Not given: as many as query heads."""
    tie_word_embeddings: bool = False
    """Use one matrix for the embedding and the head."""
    rms_norm_eps: float = Field(default=1e-5, gt=0)
    """Added to the mean square inside each norm."""
    rope_theta: float = Field(default=10_000.0, gt=0)
    """Base of the rotary position angles."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; norms start at 1."""
    max_position_embeddings: int = Field(default=2048, ge=1)
    """Longest segment the model is meant for; written into exported configurations."""

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelSettings":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}. "
                f"Change one so that every head has the same width."
            )
        if self.head_size % 2:
            raise ValueError(
                f"a head is hidden_size / num_attention_heads = {self.head_size} wide; "
                "rotary positions turn pairs of numbers and need an even width."
            )
        if self.num_attention_heads % self.key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.key_value_heads}. Each key-value head serves equally many query heads."
            )
        return self

    @property
    def head_size(self) -> int:
        """E, the width of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        """K, with the default filled in."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads
