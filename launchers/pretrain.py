"""The engine's own way in: `deepspeed launchers/pretrain.py --ds_config FILE [--config RUN.toml] [--set a.b=value]`."""

import argparse
import sys

from toolkit.cli.exit_codes import guarded, print_error_on_rank_0
from toolkit.core.console import survive_lost_output


def main() -> None:
    """One rank: read the arguments, prepare the bundled corpus where the quickstart preset is run, pretrain."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--ds_config", help="a DeepSpeed JSON, or the name of a shipped one (zero2)")
    what.add_argument("--run_dir", help="a run folder that `toolkit train` has resolved; no other option is read")
    parser.add_argument("--config", help="a run file or the name of a preset; default: the quickstart preset")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=value")
    parser.add_argument("--local_rank", type=int, help="set by the deepspeed launcher")
    arguments = parser.parse_args()

    from toolkit.workflows.rank import run_rank, run_resolved_rank

    if arguments.run_dir is not None:
        run_resolved_rank(arguments.run_dir)
        return
    run_rank(arguments.config, arguments.overrides, ds_config=arguments.ds_config)


if __name__ == "__main__":
    survive_lost_output()
    sys.exit(guarded(main, report=print_error_on_rank_0))
