"""Measures what no test should assert: gates over many seeds, speed and memory, side by side with peers and limits.

    python scripts/bench.py acceptance                  # every gate; about two hours on 2 cores
    python scripts/bench.py acceptance --gates grid --seeds 3

Each command lives in scripts/bench_NAME.py, which has `arguments(parser)` and `main(options)`.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads fight over shared cores

import argparse
import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    modules = {path.stem.removeprefix("bench_"): path.stem for path in sorted(FOLDER.glob("bench_*.py"))}
    for name in modules:
        commands.add_parser(name, add_help=False)
    chosen, rest = parser.parse_known_args(arguments)
    sys.path.insert(0, str(FOLDER))
    bench = import_module(modules[chosen.command])
    own = argparse.ArgumentParser(prog=f"bench.py {chosen.command}", description=bench.__doc__)
    bench.arguments(own)
    return bench.main(own.parse_args(rest)) or 0


if __name__ == "__main__":
    sys.exit(main())
