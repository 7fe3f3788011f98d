"""The reader of the source sees what the rules are about."""

import ast

from tests.support.sources import Module, functions, imports, nesting

SOURCE = """
import torch
from a.b import c

class Outer:
    def method(self):
        '''Two
        lines.'''
        from inside import late
        if late:
            for _ in late:
                with torch.distributed.group:
                    def inner():
                        while True:
                            pass
        elif torch:
            pass
        elif c:
            pass
"""


def _module() -> Module:
    return Module(path="toolkit/model/x.py", name="toolkit.model.x", text=SOURCE, tree=ast.parse(SOURCE))


def test_imports_inside_functions_and_plain_attributes_count() -> None:
    assert {found.name for found in imports(_module())} == {"torch", "a.b.c", "inside.late", "torch.distributed"}


def test_functions_have_dotted_names_and_lengths() -> None:
    assert {function.name: function.num_lines for function in functions(_module())} == {
        "Outer.method": 12,
        "Outer.method.inner": 3,
    }


def test_nesting_counts_blocks_of_one_function() -> None:
    """if, for, with: three; `elif` adds none, and the inner function starts anew."""
    assert {function.name: nesting(function.node) for function in functions(_module())} == {
        "Outer.method": 3,
        "Outer.method.inner": 1,
    }


def test_packages_are_named_as_in_the_table() -> None:
    assert _module().package == "toolkit.model"
