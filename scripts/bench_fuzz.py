"""Damages and forges small policy files, and counts what loading makes of them.

python scripts/bench.py fuzz                          # 20 000 files, some minutes
python scripts/bench.py fuzz --count 300 --seed 7
python scripts/bench.py fuzz --first 4711 --count 1 --keep broken/   # one of them again, kept

A damaged file must be refused by one error of this library within 2 s of CPU time and 1 GiB, or behave as the original
to the bit. A forged one, whose checksum is right, may also be another valid file: if it means what it says (saved again
it has the same header) and a second opinion, written apart from the loader, finds every changed value legal. Whatever
else loads is SILENT, and fails the run, as do other exceptions, slow files and large ones.
"""

from __future__ import annotations

import argparse
import math
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import torch
from fuzz_mutations import DAMAGE, FORGERY, Forged, Original, places, value_at
from fuzz_originals import make_originals, originals_of
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from s2r_torch.coverage import passages
from s2r_torch.deployment.likeness import Sight
from s2r_torch.deployment.policy_file import load_policy_file, read, save_policy
from s2r_torch.errors import S2RError
from s2r_torch.files.tensors import OURS
from s2r_torch.text import printable

MOST_SECONDS, MOST_BYTES = 2.0, 2**30
GOOD = ("refused", "same", "another valid file")
BAD = ("SILENT", "other exception", "slow", "large")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=20_000, help="how many files")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0, help="which files")
    parser.add_argument("--of", type=Path, nargs="*", default=[], help="policy files to damage, not the small ones")
    parser.add_argument("--keep", type=Path, help="a folder for the files that fail")


def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 150)
    counts, failures = fuzz(options.count, options.seed, options.first, options.keep, console, options.of)
    table = Table("how", "files", *GOOD, *BAD)
    for how in [make.__name__ for make, _ in (*DAMAGE, *FORGERY)]:
        row = [counts[how, what] for what in (*GOOD, *BAD)]
        table.add_row(how, str(sum(row)), *map(str, row))
    totals = [sum(count for (_, what), count in counts.items() if what == column) for column in (*GOOD, *BAD)]
    table.add_row("all", str(sum(totals)), *map(str, totals))
    console.print(table)
    for line in failures[:20]:
        console.print(line, markup=False, highlight=False)
    return int(bool(failures))


def fuzz(
    count: int,
    seed: int,
    first: int = 0,
    keep: Path | None = None,
    console: Console | None = None,
    files: Sequence[Path] = (),
) -> tuple[Counter, list[str]]:
    """Counts by (how, what became of it), and one line for each file that failed."""
    counts, failures = Counter(), []
    makers, weights = zip(*DAMAGE, *FORGERY, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        made_of = originals_of(files) if files else make_originals(path)
        originals = [(original, behaviour(write(path, original.data))) for original in made_of]
        for i in track(
            range(first, first + count), "files", console=console, disable=not (console and console.is_terminal)
        ):
            r = Random(f"{seed}/{i}")
            (a, expected), (b, _) = r.choice(originals), r.choice(originals)
            (make,) = r.choices(makers, weights)
            made = make(a, b, r)
            what, why = judged(path, a, made, expected)
            counts[make.__name__, what] += 1
            if what in BAD:
                failures.append(f"{i}: {make.__name__} of {a.name}: {what}: {why}")
                if keep:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{i}.safetensors").write_bytes(path.read_bytes())
    return counts, failures


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# -- what became of a file ---------------------------------------------------------------------------------------------


def judged(path: Path, original: Original, made: bytes | Forged, expected: list) -> tuple[str, str]:
    """One of `GOOD` or `BAD`, and why."""
    forged = isinstance(made, Forged)
    write(path, made.data() if forged else made)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        found, what, why = behaviour(path), "same", ""
    except S2RError as error:
        found, what, why = None, "refused", str(error)
    except Exception as error:
        found, what, why = None, "other exception", f"{type(error).__name__}: {printable(error)}"
    seconds = time.process_time() - start
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if seconds > MOST_SECONDS or grown > MOST_BYTES:
        return ("slow" if seconds > MOST_SECONDS else "large"), f"{what}, {seconds:.1f} s, {grown / 2**20:.0f} MiB"
    if found is None or same(found, expected):
        return what, why
    if not forged:
        return "SILENT", "damaged, and loads as something else"
    faults = illegal(original, made)
    header = {key: value for key, value in read(path)[0].items() if key not in OURS}
    if resaved(path) != header:  # 1 and 1.0 are one number
        faults.append("saved again it is another file")
    return ("SILENT", "; ".join(faults)) if faults else ("another valid file", "")


def behaviour(path: Path) -> list:
    """All that a user sees of a policy file: what it decides on fixed readings, and what it says."""
    held = load_policy_file(path)
    policy = held.policy
    graph, spec, g = policy.problem.graph, policy.spec, torch.Generator().manual_seed(0)
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (spec.low, spec.high))
    x = low + (high - low) * (
        0.2 + 0.6 * torch.rand(graph.num_states, 12, spec.obs_dim, dtype=torch.float64, generator=g)
    )
    D = policy.densities([policy.encoding(readings) for readings in x] if policy.encoding else list(x))
    acting = policy.condition(D)
    seen = [acting.q(step, x[0]) for step in range(graph.horizon)]
    if policy.reference:
        states = [s for s, _ in passages(graph, policy.cover)]
        sight = Sight.of(D, D[states], states, policy.problem.grid)
        seen += [policy.reference.population.scores(sight, states), policy.reference.scores]
    said = [policy.chosen, policy.cover, policy.n_real, policy.ensemble.exact, policy.ensemble.size, graph.paths, spec]
    return [D, *seen, graph.next_state, *said, held.certificate, held.family, held.fallback]


def same(found: list, expected: list) -> bool:
    """Equal to the bit."""
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(
        type(a) is type(b) and (torch.equal(a, b) if isinstance(a, Tensor) else a == b) for a, b in pairs
    )


def resaved(path: Path) -> dict:
    """The header of the policy in a file, saved again."""
    header, held, again = read(path)[0], load_policy_file(path), path.with_name("again.safetensors")
    save_policy(again, held.policy, family=held.family, certificate=held.certificate, notes=header["notes"])
    made = {key: value for key, value in read(again)[0].items() if key not in OURS}
    return made | {"versions": header["versions"]}


# -- a second opinion on forgeries: nothing of the loader's ------------------------------------------------------------


def between(low: float, high: float, kinds: tuple = (int, float)) -> Callable[[object, dict], bool]:
    return lambda value, header: type(value) in kinds and low <= value <= high


def number(value: object, header: dict) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def anything(value: object, header: dict) -> bool:
    return True


# Values that may change alone, by their places, and to what; all others are bound by the rest of the file.
FREE: tuple[tuple[str, Callable[[object, dict], bool]], ...] = (
    (r"(versions|notes|family)(\..*)?", anything),
    (r"spec\.obs_names\.\d+", lambda value, h: type(value) is str and h["spec"]["obs_names"].count(value) == 1),
    (r"encoder\.spec\.obs_names\.\d+", lambda value, h: h["encoder"]["spec"]["obs_names"].count(value) == 1),
    (r"encoder\.spec\.(low|high)\.\d+", number),
    (r"encoder\.spec\.zeta", lambda value, h: value is None or (number(value, h) and value >= 0)),
    (r"spec\.max_states_per_layer", between(2, 10**9, (int,))),
    (r"spec\.(low|high)\.\d+", lambda value, h: number(value, h) and h["spec"]["low"] < h["spec"]["high"]),
    (r"spec\.(reward_scale|zeta)", lambda value, h: value is None or (number(value, h) and value >= 0)),
    (r"spec\.reward_width", between(1e-300, 1)),
    (r"estimator\.(order|bandwidth\.\d+)", lambda value, h: number(value, h) and value > 0),
    (r"estimator\.off_grid_limit", between(0, 1)),
    (r"estimator\.(kernel|boundary)", lambda value, h: value in ("legendre", "box", "epanechnikov", "none")),
    (r"groups\.\d+\.gains\.\d+", between(0, 1)),
    (r"groups\.\d+\.flips\.\d+", lambda value, h: re.fullmatch("[01]+", value) is not None),
    (r"groups\.\d+\.mixture\.(smoothness|quadrature|kind|base|theta_law)", anything),
    (r"groups\.\d+\.settings\.lipschitz_bound", lambda value, h: value == "auto" or (number(value, h) and value > 0)),
    (r"chosen", lambda value, h: type(value) is int and 0 <= value < sum(g.get("members", 6) for g in h["groups"])),
    (r"n_real", between(1, 10**6, (int,))),
    (r"cover(\..*)?", anything),  # `covers` is asked
    (r"exact", lambda value, h: type(value) is bool and all(group["kind"] != "net" for group in h["groups"])),
    (r"certificate", lambda value, h: value is None),
    (r"certificate\.(n_rollouts|simulators)", between(1, 10**12, (int,))),
    (r"certificate\.(delta|share)", between(1e-300, 1)),
    (r"certificate\.bound", lambda value, h: type(value) is str),
    (r"certificate\.(value_mean|value_lower|share_value|used_mean|used_lower|refused_value)", between(0, 1 + 1e-6)),
    (r"certificate\.refused", between(0, 10**12, (int,))),
    (r"certificate\.refusals", lambda value, h: value is None),
    (r"certificate\.refusals\.(rate|low|high)", between(0, 1 + 1e-6)),
    (r"certificate\.gap\.(performance_difference|paired|upper_minus_lower)", between(-1 - 1e-6, 1 + 1e-6)),
    (r"certificate\.gap\.density_error", lambda value, h: number(value, h) and value >= 0),
    (r"certificate\.gap\.density_error_kind", lambda value, h: value in ("given", "measured")),
)
BOUND_TENSORS = r"graph\..*|group\d+\.(ranks|functionals)"


def illegal(original: Original, made: Forged) -> list[str]:
    """Changed values that no file may have, or that contradict the rest of it."""
    faults, old, new = [], dict(leaves(original.header)), dict(leaves(made.header))
    twins = tuple(f"groups.{i}." for i in repeated(made.header["groups"]))
    for place in sorted({*old, *new}):
        if place in old and place in new and type(old[place]) is type(new[place]) and old[place] == new[place]:
            continue
        if left_out(place, new) or place.startswith(twins):
            continue
        fits = [test for pattern, test in FREE if re.fullmatch(pattern, place)]
        if not (fits and all(test(new.get(place), made.header) for test in fits)):
            faults.append(f"{place} = {printable(new.get(place, 'none'), 60)}")
    if not covers(made):
        faults.append("a cover of too few states, or of another number of sequences")
    for name in sorted({*original.tensors} | {*made.tensors}):
        a, b = original.tensors.get(name), made.tensors.get(name)
        alike = a is not None and b is not None and (a.dtype, a.shape) == (b.dtype, b.shape)
        if not alike:
            scores = name == "reference.scores" and made.header["certificate"] is None
            faults += [] if scores and b is not None else [f"{name} of another type or shape"]
        elif not bool(torch.isfinite(b).all()) or (re.fullmatch(BOUND_TENSORS, name) and not torch.equal(a, b)):
            faults.append(f"{name} with other numbers")
    return faults


def left_out(place: str, new: dict) -> bool:
    """Whether a record around this value is null, which is judged at its own place."""
    parts = place.split(".")
    return any(new.get(".".join(parts[:i]), place) is None for i in range(1, len(parts)))


def repeated(groups: list) -> list[int]:
    """Which groups are there before, and hold no weights: a class may have a member twice."""
    return [i for i, group in enumerate(groups) if group["kind"] != "net" and group in groups[:i]]


def covers(made: Forged) -> bool:
    """Whether the action sequences visit every state, as many as a certificate says: all such lists are legal."""
    following, seen = made.tensors["graph.next_state"].tolist(), {0}
    for sequence in made.header["cover"]:
        state = 0
        for action in sequence:
            if type(action) is not int or not 0 <= action < len(following[state]):
                return False
            state = following[state][action]
            seen.add(state)
    promised = (made.header["certificate"] or {}).get("sequences", len(made.header["cover"]))
    return seen == set(range(len(following))) and promised == len(made.header["cover"])


def leaves(header: dict) -> list[tuple[str, object]]:
    """Every value that is no record and no list, by its place; empty ones, too."""
    found = ((place, value_at(header, place)) for place in places(header))
    return [
        (".".join(map(str, place)), value) for place, value in found if not (isinstance(value, dict | list) and value)
    ]
