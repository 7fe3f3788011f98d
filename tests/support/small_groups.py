"""The command line, whose `preprocess` has a group for each source: `python -m tests.support.small_groups ...`."""

import runpy

from toolkit.preprocess.writer import groups

if __name__ == "__main__":
    groups.SOURCE_GROUP_BYTES = 1
    runpy.run_module("toolkit.cli", run_name="__main__", alter_sys=True)
