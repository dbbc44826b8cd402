"""Writes a family of your own to start from: a commented module, its experiment, and its test.

s2r-new my_world                    a plain Python function step(theta, state, action)
s2r-new my_world --base gym         any Gymnasium environment with discrete actions
s2r-new my_world --base torch       a function of batches
"""

import argparse
from pathlib import Path

from s2r_torch.commands.arguments import refusing
from s2r_torch.families.new import BASES, write_family
from s2r_torch.reports.endings import clear_ending, terminal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the module and of the family: letters, digits, underscores")
    parser.add_argument("--base", choices=BASES, default="function", help="what it is made of")
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the files go")
    parser.error = refusing("NAME, and options that --help shows", "a slip of the command line")  # type: ignore[assignment]
    console = terminal()
    with clear_ending(console, "nothing else was written", exits=True):
        options = parser.parse_args()
        written = write_family(options.name, options.base, options.folder)
        for path in written:
            console.print(str(path), markup=False, highlight=False, soft_wrap=True)
