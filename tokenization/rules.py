"""How a text becomes ids, and what each kind of tokenizer does of its own accord."""

from dataclasses import dataclass

from tokenization.errors import TokenizationError
from tokenization.reference import TokenizerKind


@dataclass(frozen=True)
class EncodingRules:
    """How a text becomes ids. None is the way of the tokenizer's kind.

    Args:
        parse_special_text: the string of a special token inside a text becomes that token, as in transformers;
            otherwise it is text like any other. Hugging Face tokenizers do; tiktoken and SentencePiece never.
        add_bos: keep what the tokenizer's own post-processor puts in front of a text. A Hugging Face tokenizer may
            have one; tiktoken and SentencePiece files have none.
        add_eod: append the end-of-document token.
    """

    parse_special_text: bool | None = None
    add_bos: bool | None = None
    add_eod: bool = True


def settle_rules(rules: EncodingRules, kind: TokenizerKind) -> EncodingRules:
    """The rules with nothing left open.

    Raises:
        TokenizationError: something that this kind never does is asked for.
    """
    is_hugging_face = kind is TokenizerKind.HUGGINGFACE
    library = "tiktoken" if kind is TokenizerKind.TIKTOKEN else "SentencePiece"
    if rules.parse_special_text and not is_hugging_face:
        raise TokenizationError(
            f"Strings of special tokens inside text cannot be parsed (--special-text parse) with a {library} file: "
            f"the ids are those of {library} itself, which reads them as plain text. Leave the option out; or use a "
            "tokenizer.json, such as the tokenizer folder of a corpus made with this file."
        )
    if rules.add_bos and not is_hugging_face:
        raise TokenizationError(
            f"A {library} file has no post-processor that puts a token in front of a text, and none is invented. Use a "
            "tokenizer.json that has one."
        )
    return EncodingRules(
        parse_special_text=is_hugging_face if rules.parse_special_text is None else rules.parse_special_text,
        add_bos=is_hugging_face if rules.add_bos is None else rules.add_bos,
        add_eod=rules.add_eod,
    )
