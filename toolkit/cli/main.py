"""The `toolkit` command: a table of subcommands, each imported when it is called."""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from toolkit.cli.exit_codes import DEBUG_VARIABLE, INTERRUPTED, guarded
from toolkit.core.processes import end_after
from toolkit.core.signals import stop_signals_kept

_COMMANDS = {
    "quickstart": "Run the whole pipeline on bundled text",
    "tokenizer": "Train a tokenizer on text",
    "preprocess": "Tokenize text into memory-mapped shards",
    "adopt": "Use Megatron-LM's .bin/.idx files in place",
    "inspect": "Show a corpus, a run or a checkpoint",
    "verify": "Check the hashes of a corpus, a run or a checkpoint",
    "train": "Pretrain an encoder, one objective after another",
    "doctor": "Check the ranks and machines of a run",
    "branch": "Start a new run from a step of another",
    "merge": "Average the weights of checkpoints",
    "study": "Train a family of runs, common prefixes once",
    "convert": "Export to or import from Hugging Face",
    "finetune": "Fine-tune an encoder and evaluate it",
    "predict": "Predict with a fine-tuned model",
    "score": "Score minimal pairs, zero-shot",
    "grid": "Fine-tune models on tasks, rates and seeds",
    "report": "Tables, tests and figures from grids and runs",
}
_BELOW = {"tokenizer": "train"}
"""Commands that are groups, with the one command in each."""
_RESUMED = {"grid", "preprocess", "quickstart", "study"}
"""Commands that keep what is finished; `train` prints its own message, and the others start again."""
_OUTPUTS = {"output": "--output", "out": "OUT"}
"""Names of arguments that are the folder or file to write, as users see them."""
_RESERVED = {"plan", "adapt", "estimate", "launch", "watch"}


# typer has its own copy of click and does not export its names.
_UsageError: Any = typer.BadParameter.__base__


class _Command(TyperCommand):
    examples: tuple[str, ...] = ()
    sections: Callable[[], Sequence[tuple[str, Sequence[tuple[str, str]]]]] = staticmethod(tuple)
    """Help sections after the options: titles and rows."""

    def invoke(self, ctx: Any) -> Any:
        from toolkit.core.files import check_home

        for key, option in _OUTPUTS.items():
            check_home(ctx.params.get(key) or "", option)
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        # typer writes {SOURCE}... for a required argument.
        return [piece.translate({ord("{"): None, ord("}"): None}) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments, options = [], []
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                if parameter.param_type_name == "argument":
                    # Without the type, which typer writes after the name.
                    arguments.append((parameter.metavar or parameter.name, record[1]))
                else:
                    options.append(record)
        for title, records in (("Arguments", arguments), ("Options", options), *self.sections()):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  {example}\n")


class _LazyGroup(TyperGroup):
    """Lists the table without importing anything; imports a command when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command's entry in the list, without its options."""
        return TyperCommand(cmd_name, help=_COMMANDS[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in _RESERVED:
            anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
            command = TyperCommand(name, callback=lambda: _refuse(name), hidden=True, context_settings=anything)
            return name, command, args[1:]
        if name not in _COMMANDS:
            _refuse_unknown(name)
        module = importlib.import_module(f"toolkit.cli.{name}")
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        more: dict[str, Any] = {"examples": getattr(module, "EXAMPLES", ())}
        if hasattr(module, "help_sections"):
            more["sections"] = staticmethod(partial(module.help_sections, args[1:]))
        app.command(_BELOW.get(name, name), cls=type("_CommandWithHelp", (_Command,), more))(module.command)
        if name in _BELOW:
            app.callback(no_args_is_help=True, help=_COMMANDS[name])(_no_options)
        return name, get_command(app), args[1:]

    def make_context(self, *args: Any, **given: Any) -> Any:
        with _usage_errors():
            return super().make_context(*args, **given)

    def invoke(self, ctx: Any) -> Any:
        code = INTERRUPTED

        def interrupt(number: int, frame: object) -> NoReturn:
            nonlocal code
            code = 128 + number
            raise KeyboardInterrupt

        try:
            # Commands that save on SIGTERM have their own handlers; the others clean up as on Ctrl-C.
            with stop_signals_kept(), _usage_errors():
                signal.signal(signal.SIGTERM, interrupt)
                return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            what = "continues" if ctx.invoked_subcommand in _RESUMED else "starts again"
            print(str(interruption) or f"interrupted; the same command {what}", file=sys.stderr, flush=True)
            # Otherwise typer would turn it into exit code 1.
            raise SystemExit(code) from None


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Report command-line errors like all other errors; a group without a command shows its help."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        from toolkit.core.errors import SettingsError

        if isinstance(error, typer.BadParameter):
            error.message = _message(error)
        command, wrong = error.ctx.command if error.ctx else None, error.format_message().rstrip(".")
        example = next((f" For example: {example}" for example in getattr(command, "examples", ())), "")
        path = error.ctx.command_path if error.ctx else "toolkit"
        raise SettingsError(f"{wrong[:1].lower()}{wrong[1:]}.{example}\nFor all options, see: {path} --help") from error


def _message(error: typer.BadParameter) -> str:
    """Message on an invalid value, worded like all our messages; typer puts the option in front."""
    from pydantic import ValidationError

    from toolkit.core.settings import expectation

    if not isinstance(error.__cause__, ValidationError):
        return error.message
    findings = error.__cause__.errors(include_url=False)
    message = expectation(*findings)
    if message == "embedded null byte":
        return "a path cannot contain the NUL character."
    if findings[0]["type"] == "value_error":
        return message
    return f"{message}, got {str(findings[0]['input'])!r}."


def _no_options() -> None:
    """Callback that turns an app with one command into a group."""


def _refuse(name: str) -> None:
    from toolkit.core.errors import UserError

    raise UserError(f"`toolkit {name}` is not available yet. For the available commands, see: toolkit --help")


def _refuse_unknown(name: str) -> NoReturn:
    from toolkit.core.errors import UserError
    from toolkit.core.settings import nearest

    raise UserError(
        f"no such command {name!r}.{nearest(name, _COMMANDS)} Commands: {', '.join(_COMMANDS)}.\n"
        "For what they do, see: toolkit --help"
    )


def _options(
    debug: bool = typer.Option(False, "--debug", help="Show a traceback with every error."),
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
) -> None:
    """Pretrain text encoders with a schedule of objectives: CLM first, then MLM."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
    if version:
        import toolkit

        print(toolkit.__version__)
        raise typer.Exit


def application() -> typer.Typer:
    """The command line, without any command imported."""
    app = typer.Typer(
        cls=_LazyGroup,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(_options)
    return app


def main() -> None:
    """Run the command line and exit with its exit code."""
    sys.exit(guarded(lambda: get_command(application())(prog_name="toolkit")))


def entry() -> NoReturn:
    """`main` as the whole program of this process."""
    end_after(main)
