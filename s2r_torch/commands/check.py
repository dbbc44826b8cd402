"""Checks a family in seconds, before any run: what was looked at, what was found, the likely cause, what to write.

    s2r-check grid
    s2r-check grid width=5 noise_high=0.3
    s2r-check my_world      a family of your own, from my_world.py in this folder

Exit code 2 if a run would be wrong.
"""

import argparse
import json
import sys

from rich.console import Console

from s2r_torch.errors import SettingError
from s2r_torch.families import FAMILIES, family_named
from s2r_torch.registry import import_namesake, import_plugins
from s2r_torch.reports.endings import clear_ending
from s2r_torch.reports.family_check import check_table
from s2r_torch.runs.checking import check_for_a_run


def parameters(pairs: list[str]) -> dict:
    """key=value texts as keyword arguments; a value that is no JSON is text.

    Raises:
        SettingError: a text without =.
    """
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingError(
                expected="key=value", got=repr(pair), cause="a parameter of the family without its value"
            )
        try:
            found[key.removeprefix("env.")] = json.loads(value)
        except ValueError:
            found[key.removeprefix("env.")] = value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of a family; env=NAME is as good")
    parser.add_argument("parameters", nargs="*", help="key=value, of the family")
    parser.add_argument("--plugins", action="append", default=[], metavar="MODULE", help="that registers families")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    options = parser.parse_intermixed_args()
    console = Console()
    with clear_ending(console, "nothing was written"):
        import_plugins(options.plugins)
        name = options.name.removeprefix("env=")
        import_namesake(FAMILIES, name)
        family = family_named(name, parameters(options.parameters), "env")
        report = check_for_a_run(family, options.seed)
        console.print(check_table(report))
    sys.exit(2 if report.refused else 0)
