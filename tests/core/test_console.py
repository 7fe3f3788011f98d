"""What is printed is what was said."""

from toolkit.core.console import console, facts


def test_square_brackets_are_text(capsys):
    console().print("mask token [unused19], in a[red]/b[/red] :smile:")
    assert capsys.readouterr().out == "mask token [unused19], in a[red]/b[/red] :smile:\n"


def test_a_table_in_a_log_has_a_line_for_each_row_and_no_blanks_behind(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = facts()
    table.add_row("short", "value")
    table.add_row("samples of the text", "word " * 40 + "end")
    console().print(table)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "short                value"
    assert second == "samples of the text  " + "word " * 40 + "end"
