"""Small tokenizers of the three kinds whose tokens are parts of words, trained on a few sentences."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SENTENCES = (
    "The old miller in New Yorkshire counts his geese at dawn .",
    "A young fox from Leicestershire paints the walls of Oldham red .",
    "Nobody in the villages counts the miller 's paintings twice .",
)
KINDS = ("byte-level BPE", "SentencePiece", "WordPiece")


def subword_tokenizer(kind: str, *, model_max_length: int = 1000) -> PreTrainedTokenizerFast:
    """A tokenizer of one of `KINDS`; WordPiece adds `[CLS]` and `[SEP]`, byte-level BPE ends a text with `<eos>`."""
    tokenizer = {"byte-level BPE": _byte_level, "SentencePiece": _sentencepiece, "WordPiece": _wordpiece}[kind]()
    names = ("[PAD]", "[UNK]", "[SEP]") if kind == "WordPiece" else ("<pad>", "<unk>", "<eos>")
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=names[0],
        unk_token=names[1],
        eos_token=names[2],
        model_max_length=model_max_length,
    )


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<pad>", "<unk>", "<eos>"]
    tokenizer.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=340, special_tokens=specials, initial_alphabet=alphabet)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 2)])
    return tokenizer


def _sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    specials = ["<pad>", "<unk>", "<eos>"]
    tokenizer.train_from_iterator(
        SENTENCES, trainers.UnigramTrainer(vocab_size=90, special_tokens=specials, unk_token="<unk>")
    )
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=120, special_tokens=specials))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer
