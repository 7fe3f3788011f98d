"""Program of a rank: `deepspeed launchers/pretrain.py [--config RUN.toml] [--ds_config FILE] [--set a.b=value]`.

Any other launcher that sets a rank's environment variables works too.
"""

import argparse
import sys

from toolkit.cli.exit_codes import guarded, print_error_on_rank_0
from toolkit.core.console import survive_lost_output
from toolkit.core.processes import end_after


def main() -> None:
    """Read the arguments of a rank, prepare the bundled corpus if the quickstart preset is run, and pretrain."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ds_config", default="auto", help="a DeepSpeed JSON, a shipped one (zero2), or auto")
    what.add_argument(
        "--run_dir", help="a run folder that `toolkit train` has resolved; of other options, only --until is read"
    )
    parser.add_argument("--config", help="a run file or the name of a preset; default: the quickstart preset")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=value")
    parser.add_argument("--until", type=int, metavar="K", help="stop after update K, with a checkpoint")
    parser.add_argument("--print_run_dir", action="store_true", help="print the run folder of --config; start nothing")
    parser.add_argument(
        "--doctor", action="store_true", help="examine the ranks and machines of --config; train nothing"
    )
    parser.add_argument("--local_rank", type=int, help="set by `deepspeed` and `torch.distributed.launch`")
    arguments = parser.parse_args([_with_underscores(argument) for argument in sys.argv[1:]])
    if arguments.until is not None and arguments.until < 1:
        parser.error(f"argument --until: expected at least 1, got {arguments.until}")

    if arguments.print_run_dir:
        if arguments.config is None:
            parser.error("--print_run_dir needs --config")
        from toolkit.run import load_run

        print(load_run(arguments.config, arguments.overrides).run.dir)
        return
    if arguments.doctor:
        if arguments.config is None:
            parser.error("--doctor needs --config")
        from toolkit.launching.doctor import examine

        examine(arguments.config, arguments.overrides, ds_config=arguments.ds_config)
        return
    from toolkit.launching.rank import run_rank, run_resolved_rank

    if arguments.run_dir is not None:
        run_resolved_rank(arguments.run_dir, until=arguments.until)
        return
    run_rank(arguments.config, arguments.overrides, ds_config=arguments.ds_config, until=arguments.until)


def _with_underscores(argument: str) -> str:
    """An option with underscores: launchers and people write both --local-rank and --local_rank."""
    name, equals, value = argument.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if argument.startswith("--") else argument


if __name__ == "__main__":
    survive_lost_output()
    end_after(lambda: guarded(main, report=print_error_on_rank_0))
