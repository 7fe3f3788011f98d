import pytest

from toolkit.core.errors import UserError
from toolkit.finetuning.formats import smart
from toolkit.finetuning.formats.judgements import Document

DOCUMENTS = """.I 1
.T
a wing in
a slipstream .
.A
brenckman,m.
.W
a wing in a slipstream .
  an experimental study
.I 2
.T
.W
.I 4
.T
heat
.W
conduction
.W
in slabs
"""
QUERIES = ".I 001\n.W\nwhat of\nwings\n.I 004\n.W\nheat .\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "cran.all.1400").write_text(DOCUMENTS)
    (tmp_path / "cran.qry").write_text(QUERIES)
    (tmp_path / "cranqrel").write_text("1 1 1 \n1 4 4\n1 2 -1\n2 4 5\n2 1 3\n")
    (tmp_path / "cranqrel.readme").write_text("codes\n")
    return tmp_path


def read(path):
    file = smart.judgements_file(path)
    return smart.read_judgements(file, smart.read_collection(file))


def test_cranfield(folder):
    assert smart.is_smart(folder)
    judged = read(folder)
    assert judged.collection.documents == {
        "1": Document("a wing in a slipstream .", "an experimental study"),
        "2": Document("", ""),
        "4": Document("heat", "conduction in slabs"),
    }
    assert judged.collection.queries == {"1": "what of wings", "2": "heat ."}  # Numbered by position, not by .I.
    assert judged.grades == {"1": {"1": 4, "4": 1}, "2": {"4": 0, "1": 2}}  # -1 is no judgement.


@pytest.mark.parametrize(
    ("lines", "grades"),
    [
        ("     1     1\t0\t0.000000\n     1     4\t0\t0.000000\n", {"1": {"1": 1, "4": 1}}),  # CISI.
        ("1 0 4 1\n2 0 1 0\n", {"1": {"4": 1}, "2": {"1": 0}}),  # TREC.
        ("2 4\n", {"2": {"4": 1}}),
    ],
)
def test_other_columns(folder, lines, grades):
    (folder / "mine.rel").write_text(lines)
    assert read(folder / "mine.rel").grades == grades


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cranqrel", "1 9 1\n", "cranqrel, line 1: document '9' is not in {folder}/cran.all.1400"),
        ("cranqrel", "1 1 1\n3 1 1\n", "cranqrel, line 2: query '3' is not in {folder}/cran.qry"),
        ("cranqrel", "1 1 7\n", "cranqrel, line 1: expected a code of relevance from 1 (best) to 5, or -1, got 7"),
        ("cranqrel", "1 1 x\n", "cranqrel, line 1: expected an integer in the last column, got 'x'"),
        ("cranqrel", "1 1 1\n1 4\n", "cranqrel, line 2: expected the same 2, 3 or 4 columns"),
        ("cranqrel", "1\n", "cranqrel, line 1: expected the same 2, 3 or 4 columns"),
        ("cranqrel", "", "cranqrel: no judgements in this file"),
        ("cran.all.1400", "text\n", "cran.all.1400, line 1: expected .I and a number, got 'text'"),
        ("cran.all.1400", ".I 1\n.W\na\n.I 1\n.W\nb\n", "cran.all.1400, line 4: a second document 1"),
        ("cran.qry", ".I 1\n.W\n", "cran.qry, line 1: query 1 has no text"),
        ("second.rel", "1 1\n", "expected one file of judgements (such as cranqrel), found cranqrel, second.rel"),
    ],
)
def test_what_does_not_fit_is_named(folder, name, content, message):
    (folder / name).write_text(content)
    with pytest.raises(UserError) as error:
        read(folder)
    assert message.format(folder=folder) in str(error.value)
