"""The `toolkit` command: a table of commands, each imported when it is called."""

import importlib
import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from toolkit.cli.exit_codes import DEBUG_VARIABLE, INTERRUPTED, guarded

_COMMANDS = {
    "quickstart": "See the whole path work on bundled text",
    "tokenizer": "Train a tokenizer on text",
    "preprocess": "Tokenise text into memory-mapped shards",
    "adopt": "Use Megatron-LM's .bin/.idx pairs as they are",
    "inspect": "Look at a corpus, a run or a checkpoint",
    "verify": "Read a corpus through and name damaged files",
    "train": "Pretrain an encoder, objective after objective",
    "convert": "Write a checkpoint as a Hugging Face model",
    "finetune": "Fine-tune an encoder on a task and score it",
}
_NOT_BUILT = {"grid", "report", "plan", "branch"}
_BELOW = {"tokenizer": "train"}
"""Commands that are groups, with the one command in each."""
_RESERVED = {"adapt", "estimate", "doctor", "launch", "watch"}


class _LazyGroup(TyperGroup):
    """Lists the table without importing anything; imports a command when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _NOT_BUILT | _RESERVED:
            anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
            return TyperCommand(cmd_name, callback=lambda: _refuse(cmd_name), hidden=True, context_settings=anything)
        if cmd_name not in _COMMANDS:
            _refuse_unknown(cmd_name)
        if ctx.invoked_subcommand is None and _is_asked_for_overview():
            return TyperCommand(cmd_name, help=_COMMANDS[cmd_name])
        module = importlib.import_module(f"toolkit.cli.{cmd_name}")
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command(_BELOW.get(cmd_name, cmd_name))(module.command)
        if cmd_name in _BELOW:
            app.callback(no_args_is_help=True, help=_COMMANDS[cmd_name])(_no_options)
        return get_command(app)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _message(error)
            raise
        except KeyboardInterrupt:
            # Else the command-line library would turn it into exit code 1.
            raise SystemExit(INTERRUPTED) from None


def _message(error: typer.BadParameter) -> str:
    """What is wrong with a value, in the words of all our messages; the library writes option and usage around it."""
    from pydantic import ValidationError

    from toolkit.core.validation import expectation

    if not isinstance(error.__cause__, ValidationError):
        return error.message
    findings = error.__cause__.errors(include_url=False)
    message = expectation(*findings)
    if message == "embedded null byte":
        return "a path cannot contain the NUL character."
    if findings[0]["type"] == "value_error":
        return message
    return f"{message}, got {str(findings[0]['input'])!r}."


def _is_asked_for_overview() -> bool:
    """Whether the command line names no command, so that only the table is wanted."""
    return not any(word in _COMMANDS for word in sys.argv[1:])


def _no_options() -> None:
    """Makes a group of an app with one command."""


def _refuse(name: str) -> None:
    from toolkit.core.errors import NotAvailableError

    raise NotAvailableError(f"`toolkit {name}`")


def _refuse_unknown(name: str) -> NoReturn:
    from toolkit.core.errors import UserError
    from toolkit.core.validation import nearest

    raise UserError(
        f"there is no command {name!r}.{nearest(name, _COMMANDS)} Commands: {', '.join(_COMMANDS)}.\n"
        "What they do is shown by: toolkit --help"
    )


def _options(
    debug: bool = typer.Option(False, "--debug", help="Show a traceback with every error."),
    version: bool = typer.Option(False, "--version", help="Show the version and leave."),
) -> None:
    """Pretrain text encoders with a schedule of objectives: CLM first, then MLM."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
    if version:
        import toolkit

        print(toolkit.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line and leave with its exit code."""
    app = typer.Typer(
        cls=_LazyGroup,
        add_completion=False,
        no_args_is_help=True,
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(_options)
    sys.exit(guarded(get_command(app)))
