import pytest

from toolkit.core.errors import UserError
from toolkit.finetuning.bad_rows import BadRows, Labels
from toolkit.finetuning.tc.conll import read_tagged
from toolkit.finetuning.tc.tag_schemes import TagScheme

CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

-DOCSTART- -X- -X- O
Peter NNP I-NP I-PER

"""
UNER = """# newdoc id = a
# sent_id = a-1
# text = # O
1\t#\tO\t-\t-
2\tNew York\tB-LOC\t-\tann

# sent_id = a-2
1\tHi\tO\t-\t-
"""


def read(tmp_path, text):
    path = tmp_path / "data.conll"
    path.write_bytes(text.encode())
    file = read_tagged(path, BadRows())
    return file.scheme, [(list(row.tokens), list(row.tags)) for row in file.sentences]


def test_conll_2003(tmp_path):
    scheme, sentences = read(tmp_path, CONLL_2003)
    assert scheme is TagScheme.IOB1
    assert sentences == [
        (["EU", "rejects", "German"], ["I-ORG", "O", "I-MISC"]),
        (["Peter"], ["I-PER"]),
    ]


def test_universal_ner(tmp_path):
    scheme, sentences = read(tmp_path, UNER)
    assert scheme is TagScheme.IOB2
    assert sentences == [(["#", "New York"], ["O", "B-LOC"]), (["Hi"], ["O"])]


def test_numbered_tokens_with_the_tag_in_the_last_column(tmp_path):
    assert read(tmp_path, "1\tEU\tNNP\tB-ORG\n2\tis\tVBZ\tO\n\n1\tHi\tUH\tO\n")[1] == [
        (["EU", "is"], ["B-ORG", "O"]),
        (["Hi"], ["O"]),
    ]


@pytest.mark.parametrize("text", ["1 O\n2 B-X\n", "1 x O\n3 x B-X\n", "1 x O\n2 x B-X\n\n2 x O\n"])
def test_numbers_are_tokens_unless_they_number_every_sentence(tmp_path, text):
    assert read(tmp_path, text)[1][0][0][0] == "1"


def test_a_hash_is_a_token_where_its_row_has_a_tag(tmp_path):
    text = "# a comment\n#NBA B-ORG\n# O\n# id = 5 O\n#x y\n"
    assert read(tmp_path, text)[1] == [(["#NBA", "#"], ["B-ORG", "O"])]


def test_line_ends_blanks_and_other_line_breaks(tmp_path):
    text = "\ufeffa\u2028b  \t O \r\n\xa0\tB-X\r\n \t\r\n\r\nc\tO"
    assert read(tmp_path, text)[1] == [(["a\u2028b", "\xa0"], ["O", "B-X"]), (["c"], ["O"])]


def test_lines_are_numbered(tmp_path):
    (tmp_path / "data.iob2").write_text(UNER)
    assert [row.places for row in read_tagged(tmp_path / "data.iob2", BadRows()).sentences] == [
        ("line 4", "line 5"),
        ("line 8",),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n# only\n-DOCSTART- O\n", "no sentences in this file"),
        ("a O\nb\n", "line 2: 1 column, but the first row has 2"),
        ("a O\nb NN\nc B-X\n", r"line 2: 'NN' is not a tag: expected O, or B- or I-"),
        ("a DT\nb NN\n", r"no tag is O, or B- or I- and a type; found: DT, NN\. .* add --label-type class"),
        ("a O\nb B-\n", "line 2: 'B-' is not a tag"),
        ("1\t\tO\n", "line 1: the token is empty"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize("column", ["3", "ner"])
def test_a_file_to_predict_may_lack_the_column_of_the_tags(tmp_path, column):
    """Of the other columns, none is taken for it."""
    path = tmp_path / "data.conll"
    path.write_text("EU B-NP\nrejects B-VP\n")
    file = read_tagged(path, BadRows(), label_column=column, labels=Labels.UNUSED)
    assert (file.scheme, [(row.tokens, row.tags) for row in file.sentences]) == (None, [(("EU", "rejects"), None)])
    with pytest.raises(UserError, match=f"the label column '{column}' is not a number from 1 to 2"):
        read_tagged(path, BadRows(), label_column=column)
