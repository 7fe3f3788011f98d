"""What is printed is what was said."""

from toolkit.core.console import console


def test_square_brackets_are_text(capsys):
    console().print("mask token [unused19], in a[red]/b[/red] :smile:")
    assert capsys.readouterr().out == "mask token [unused19], in a[red]/b[/red] :smile:\n"
