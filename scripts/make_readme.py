"""Runs the commands whose output the documents show, and pastes what they print today.

python scripts/make_readme.py              # about 2 minutes on 2 cores; pastes, and says which numbers moved
python scripts/make_readme.py --check      # pastes nothing

It ends with 2 where a number is not what was pasted: beyond `TOLERANCE`, but for seconds.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 0.02  # of a number; two machines differ in last digits, and what is chosen may
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
SECONDS = re.compile(r"\d[\d.]* s\b|│ seconds .*|written to .*")
INDENT = "    "


@dataclass(frozen=True)
class Pasted:
    """A block of a document: what a command printed, from its first line to its last."""

    file: str
    command: str  # as the document says it
    first: str  # how the block's first line begins
    last: str  # and its last one

    def cut(self, lines: list[str]) -> tuple[int, int]:
        """Where the block begins and ends in some lines.

        Raises:
            ValueError: it is not there.
        """
        starts = [i for i, line in enumerate(lines) if line.strip().startswith(self.first)]
        for start in starts:
            for end in range(start, len(lines)):
                if lines[end].strip().startswith(self.last):
                    return start, end + 1
        raise ValueError(f"expected lines from {self.first!r} to {self.last!r}; got none, in {self.file} or its output")

    def printed(self) -> list[str]:
        """The block as its command prints it now."""
        _, *words = shlex.split(self.command)
        print(f"$ {self.command}", flush=True)
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env={**os.environ, "COLUMNS": "80"}, stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            sys.exit(done.returncode if done.returncode > 0 else 128 - done.returncode)
        lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
        start, end = self.cut(lines)
        return lines[start:end]


PASTED = (
    Pasted("README.md", "python scripts/run.py +experiment=grid", "check the family", "written to"),
    Pasted(
        "docs/run.md",
        "python scripts/plan.py +experiment=grid step_seconds=0.001 'workers=[1,8]'",
        "Forecast,",
        "accept at once",
    ),
)


def numbers(text: str) -> list[float]:
    """Of a block, without seconds.

    >>> numbers("explore 5.9 s  9 states; of 1,605,072 in all, 0.998")
    [9.0, 1605072.0, 0.998]
    """
    return [float(found.replace(",", "")) for found in NUMBER.findall(SECONDS.sub("", text))]


def moved(before: str, now: str) -> list[str]:
    """What to say of numbers that are no longer what they were.

    >>> moved("value 0.66 of 9 states", "value 0.50 of 9 states")
    ['0.66 is now 0.5']
    """
    old, new = numbers(before), numbers(now)
    if len(old) != len(new):
        return [f"{len(old)} numbers are now {len(new)}"]
    far = [(a, b) for a, b in zip(old, new, strict=True) if abs(a - b) > TOLERANCE * max(abs(a), abs(b))]
    return [f"{a:g} is now {b:g}" for a, b in far]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="paste nothing")
    check, differs = parser.parse_args().check, False
    for pasted in PASTED:
        path = ROOT / pasted.file
        lines = path.read_text(encoding="utf-8").splitlines()
        start, end = pasted.cut(lines)
        now = [INDENT + line for line in pasted.printed()]
        said = moved("\n".join(lines[start:end]), "\n".join(now))
        differs |= bool(said)
        for sentence in said:
            print(f"{pasted.file}: {sentence}")
        if not check:
            path.write_text("\n".join([*lines[:start], *now, *lines[end:]]) + "\n", encoding="utf-8")
    return 2 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
