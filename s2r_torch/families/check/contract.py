"""What can be asked of a family before any episode: its name, parameters, spec, prior, and simulators."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import scipy
import torch
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.families import FAMILIES, make_family
from s2r_torch.families.check.probe import Probe, named
from s2r_torch.families.check.report import NOTE, OK, REFUSED, Finding
from s2r_torch.families.contract import users
from s2r_torch.families.encoded import unencoded
from s2r_torch.registry import require_name
from s2r_torch.rng import kept_globals, seed_globals

FLOAT32 = 2.0**-23
MANY, DRAWS, MANY_DRAWS = 200, 3, 30  # rows of a draw, in which equal ones are counted; draws, and again
SURELY_P = 1e-9
PAIRS, MANY_PAIRS = 200, 2000  # draws of two theta whose rows are compared, and again where they seem to depend
SURELY = 6.0  # standard errors
FINE_STEPS = 1000  # float32 steps that the width of a state's readings should hold; below a few, readings are rounded


def check_parameters(probe: Probe) -> list[Finding]:
    """Name and parameters: policy files rebuild a family from them."""
    family, checked = probe.family, "name and parameters"
    require_name(getattr(family, "name", None), "family")
    with users("parameters()"):
        parameters = family.parameters()
    try:
        again = json.loads(json.dumps(parameters, allow_nan=False))
        plain = isinstance(parameters, dict) and again == json.loads(json.dumps(again))
    except (TypeError, ValueError) as error:
        return [_not_json(checked, str(error))]
    if not plain:
        return [_not_json(checked, f"a {type(parameters).__name__}")]
    if family.name not in FAMILIES:
        return [
            Finding(
                checked,
                NOTE,
                f"no family is registered as {family.name!r}",
                "policy files and scripts find families by name",
                f'@register_family("{family.name}") above the class or function that makes it',
            )
        ]
    family, rebuilt = unencoded(family), make_family(family.name, **again)
    same = rebuilt.spec == family.spec and torch.equal(
        rebuilt.prior(3, torch.Generator().manual_seed(0)), family.prior(3, torch.Generator().manual_seed(0))
    )
    if not same:
        return [
            Finding(
                checked,
                REFUSED,
                f"make_family({family.name!r}, **parameters()) makes another family",
                "parameters() leaves one out (a Gym or function family says them by settings=)",
                "return every keyword argument that was given",
                SettingError,
            )
        ]
    return [Finding(checked, OK, f"{family.name}, rebuilt from its parameters ({len(parameters)})")]


def _not_json(checked: str, what: str) -> Finding:
    return Finding(
        checked,
        REFUSED,
        f"parameters() are no JSON values: {what}",
        "tensors, arrays or functions among them; policy files hold plain values only",
        "numbers, strings, lists and dicts (settings=...)",
        SettingError,
    )


def check_proposals(probe: Probe) -> list[Finding]:
    """What was taken from simulation because nothing was given."""
    proposed = getattr(probe.family, "proposed", {})
    return [Finding("taken from simulation", OK, f"{name} = {text}") for name, text in proposed.items()]


def check_prior(probe: Probe) -> list[Finding]:
    """The prior: shape, type, and that its generator alone decides what is drawn."""
    checked, prior = "prior", probe.family.prior
    with kept_globals(), users("a draw from the prior"):
        draws = []
        for seed, state in ((0, 1), (0, 2), (1, 1)):
            seed_globals(state)
            draws.append(prior(50, probe.seed.child("prior", seed).generator()))
        generator = probe.seed.child("prior", 0).generator()
        one, two = prior(50, generator), prior(50, generator)
        single = prior(1, probe.seed.child("prior", 0).generator())
    theta, again, other = draws
    shape = tuple(getattr(theta, "shape", ()))
    if not (isinstance(theta, torch.Tensor) and theta.dtype == torch.float64 and len(shape) == 2 and shape[0] == 50):
        kind = theta.dtype if isinstance(theta, torch.Tensor) else type(theta).__name__
        return [_bad(checked, f"prior(50, generator) gave {kind} of shape {list(shape)}", "", "float64 [n, k]")]
    if tuple(single.shape) != (1, shape[1]) or not bool(torch.isfinite(theta).all()):
        return [
            _bad(checked, f"prior(1) has shape {list(single.shape)}, or a draw is not finite", "", "float64 [n, k]")
        ]
    write = "torch.rand(n, k, generator=generator, dtype=torch.float64), or uniform_prior"
    if not torch.equal(theta, again):
        cause = "torch's, numpy's or random's global generator, or one that is never seeded"
        return [_bad(checked, "two draws with equal generators differ", cause, write)]
    if bool((theta == other).all()):
        return [_bad(checked, "draws with different generators are equal", "the generator is ignored", write)]
    if torch.equal(one, two):
        cause = "a generator of its own, seeded from the one handed in or afresh every time"
        return [_bad(checked, "two draws from one generator are equal", cause, write)]
    constant = (theta == theta[:1]).all(0)
    if bool(constant.all()) or len(theta.unique(dim=0)) == 1:
        return [_bad(checked, "all draws of theta are equal", "a prior of one point", "draw every row")]
    few, many = _pairs(probe, PAIRS), _draws(probe, DRAWS)
    together = rows_together(few) and rows_together(_pairs(probe, MANY_PAIRS))
    if any(tuple(draw.shape) != (MANY, shape[1]) for draw in many):
        found = f"prior({MANY}) has shape {list(many[0].shape)}"
        return [_bad(checked, found, "a sample of fixed size", "float64 [n, k]")]
    repeated = rows_repeated(many) and rows_repeated(_draws(probe, MANY_DRAWS))  # one value may be rare
    together = together or repeated or other_law(few, torch.cat(many))
    if together:
        cause = "rows that are made of each other: sorted, stratified, mirrored, repeated, a grid, a Sobol sequence"
        return [_bad(checked, f"two rows of a draw {together}: certificates assume i.i.d. theta", cause, write)]
    names = ", ".join(getattr(probe.family, "theta_names", ()) or [f"{shape[1]} numbers"])
    return [Finding(checked, OK, f"theta = {names}; a function of its generator")]


def _pairs(probe: Probe, count: int) -> Tensor:
    """Draws of two theta [count, 2, k]."""
    seeds = probe.seed.child("prior", "pairs", count)
    with kept_globals(), users("a draw from the prior"):
        return torch.stack([probe.family.prior(2, seeds.child(i).generator()) for i in range(count)])


def _draws(probe: Probe, count: int) -> list[Tensor]:
    """So many draws of MANY theta [MANY, k]."""
    seeds = probe.seed.child("prior", "many")
    with kept_globals(), users("a draw from the prior"):
        return [probe.family.prior(MANY, seeds.child(i).generator()) for i in range(count)]


def rows_together(pairs: Tensor) -> str:
    """What two rows of a draw [n, 2, k] have to do with each other, in words; empty where nothing is found.

    Ranks of the first and the second rows are compared and correlated, and their distances from the middle; each z is
    standard normal for independent rows of one law, unless few of the draws are of another kind than most.
    """
    count = len(pairs)
    ranks = torch.from_numpy(scipy.stats.rankdata(pairs.flatten(0, 1), axis=0)).reshape(pairs.shape) / (2 * count) - 0.5
    for what, values in (("", ranks), (" from the middle", ranks.abs())):
        first, second = values[:, 0] - values[:, 0].mean(0), values[:, 1] - values[:, 1].mean(0)
        apart = (values[:, 0] - values[:, 1]).mean(0) / (values[:, 0] - values[:, 1]).std(0).clamp(min=1e-12)
        if float(apart.abs().max()) * math.sqrt(count) > SURELY:
            return f"are not of one law (the first is {'smaller' if float(apart.min()) < 0 else 'larger'}{what})"
        scale = (first.square().mean(0) * second.square().mean(0)).sqrt().clamp(min=1e-12)
        z = (first * second).mean(0) / scale * math.sqrt(count)
        if float(z.abs().max()) > SURELY:
            return f"depend on each other (correlation {float(z[z.abs().argmax()]) / math.sqrt(count):+.2f}{what})"
    return ""


def rows_repeated(draws: Sequence[Tensor]) -> str:
    """How equal rows of the same draw are too many or too few, in words; empty where nothing is found.

    Of i.i.d. rows, equal ones within draws [n, k] are as frequent as between them: none where rows are continuous.
    """
    n = len(draws[0])
    within = sum(_equal_pairs(draw) for draw in draws)
    between = _equal_pairs(torch.cat(list(draws))) - within
    expected = between * len(draws) * (n - 1) / (len(draws) * (len(draws) - 1) * n)
    if within > 2 * expected + SURELY * math.sqrt(expected) + SURELY:
        return f"are equal too often ({within} pairs, of independent ones about {expected:.0f})"
    if within < 0.7 * expected - SURELY / 2 * math.sqrt(expected):
        return f"are equal too seldom ({within} pairs, of independent ones about {expected:.0f}: points not put back)"
    return ""


def _equal_pairs(rows: Tensor) -> int:
    """How many pairs of rows are equal."""
    counts = rows.unique(dim=0, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def other_law(pairs: Tensor, many: Tensor) -> str:
    """Whether rows of small draws [PAIRS, 2, k] have another law than those of large ones [n, k], in words."""
    few = pairs.flatten(0, 1)
    p = min(scipy.stats.ks_2samp(few[:, j], many[:, j]).pvalue for j in range(few.shape[1]))
    return f"have another law than many (p = {p:.2g})" if p < SURELY_P else ""


def _bad(checked: str, found: str, cause: str, write: str) -> Finding:
    return Finding(checked, REFUSED, found, cause, write, SettingError)


def check_simulators(probe: Probe) -> list[Finding]:
    """Simulators can be made, are named, and can be selected."""
    checked = "simulators"
    guard = probe.simulators(probe.theta)
    if len(set(guard.ids)) != len(guard.ids) or list(guard.ids) != list(range(len(probe.theta))):
        return [
            Finding(
                checked,
                REFUSED,
                f"simulators(theta, ids) of ids 0 .. {len(probe.theta) - 1} are called {list(guard.ids)[:4]} ...",
                "ids are names that random streams derive from; they were dropped, or made anew",
                "self.ids = tuple(int(i) for i in ids)",
            )
        ]
    if guard.spec != probe.spec:
        return [
            Finding(checked, REFUSED, "their spec is not the family's", "", "self.spec = family.spec", SettingError)
        ]
    with users("select([3, 1])"):
        chosen = list(guard.select([3, 1]).ids)
    if chosen != [3, 1]:
        found = f"select([3, 1]) gives {named(chosen, range(len(chosen)))}"
        return [Finding(checked, REFUSED, found, "", "Simulators.select in base.py")]
    return [Finding(checked, OK, f"{len(guard)} of them, named and selected by their ids")]


def check_float32(probe: Probe) -> list[Finding]:
    """Networks are float32: readings far from 0 are rounded to steps."""
    checked, spec = "distance of readings from 0", probe.spec
    x = probe.few.reset(200, probe.generators(probe.few.ids, "float32"))
    spread = x.std(1).median(0).values.tolist()
    found = []
    for name, low, high, width in zip(spec.obs_names, spec.low, spec.high, spread, strict=True):
        step = max(abs(low), abs(high)) * FLOAT32
        if width > 0 and step * FINE_STEPS > width:
            found.append(
                Finding(
                    checked,
                    REFUSED if step * 4 > width else NOTE,
                    f"{name} is {max(abs(low), abs(high)):.4g} from 0, where float32 has steps of {step:.2g}; the "
                    f"readings of a state spread over {width:.2g}",
                    "coordinates of a map, or time stamps",
                    f"subtract {round((low + high) / 2)} in the sensor",
                    SettingError,
                )
            )
    return found or [Finding(checked, OK, "float32 resolves the readings")]
