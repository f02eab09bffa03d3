"""Run a program once for each strategy, in one process, which imports torch once.

port_runner.py PROGRAM STRATEGY…
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    program, *strategies = sys.argv[1:]
    for strategy in strategies:
        sys.argv = [program, strategy]
        runpy.run_path(program, run_name="__main__")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
