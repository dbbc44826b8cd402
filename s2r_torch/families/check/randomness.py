"""Is every random number one of ours? Each simulator must be a function of its theta and its own generator alone."""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.episodes import Rollouts
from s2r_torch.errors import S2RError
from s2r_torch.families.check.probe import Probe, named, run, same_rows
from s2r_torch.families.check.report import NOTE, OK, REFUSED, Finding
from s2r_torch.families.randomness import global_states, used_since
from s2r_torch.rng import kept_globals, seed_globals

EPISODES = 16
SUSPECTS = 6  # simulators that are run alone, to find the one that is unlike
WRITE = "draw with generators[b] for row b alone: torch.rand(..., generator=generators[b])"


def check_seeds(probe: Probe) -> list[Finding]:
    """The same generators give the same bits; others give other readings; no global generator is used."""
    checked = "randomness"
    guard, actions = probe.simulators(probe.theta), probe.telling_lists(EPISODES)
    with kept_globals():
        seed_globals(1)
        before = global_states()
        one = run(guard, actions, probe.generators(guard.ids, "seeds"))
        used = used_since(before)
        seed_globals(2)
        two = run(guard, actions, probe.generators(guard.ids, "seeds"))
    other = run(guard, actions, probe.generators(guard.ids, "other"))
    same = same_rows(one, two)
    if not bool(same.all()):
        what = "readings" if not torch.equal(one.x, two.x) else "rewards"
        where = (
            f"the global generator of {' and '.join(used)}" if used else "a generator of its own that is never seeded"
        )
        return [
            Finding(
                checked,
                REFUSED,
                f"{what} of {_all_or(guard.ids, ~same)} differ between two runs with the same generators",
                f"noise from {where}, or a state that outlives reset",
                WRITE,
            )
        ]
    repeated = (one.x == other.x).flatten(2).all(2).all(1)
    if bool(repeated.any()):
        return [
            Finding(
                checked,
                REFUSED,
                f"readings of {_all_or(guard.ids, repeated)} are the same whatever generators are handed in",
                "the generators are ignored: a seed inside, or a recording played back",
                WRITE,
            )
        ]
    if used:
        libraries = " and ".join(used)
        found = f"the global generator of {libraries} is moved, though readings and rewards do not depend on it"
        return [
            Finding(checked, NOTE, found, "a seed that is set inside reset or step", "leave global generators alone")
        ]
    return [Finding(checked, OK, "readings and rewards are functions of the generators handed in")]


def _all_or(ids: tuple[int, ...], rows: Tensor) -> str:
    return "all simulators" if bool(rows.all()) else named(ids, rows.nonzero().flatten())


def check_rows(probe: Probe) -> list[Finding]:
    """A simulator does not depend on its neighbours, its place among them, or its name."""
    checked = "one simulator beside others"
    theta, ids = probe.theta, tuple(range(len(probe.theta)))
    actions = probe.telling_lists(EPISODES)

    def batch(theta: Tensor, ids: tuple[int, ...], names: tuple[int, ...]) -> Rollouts:
        return run(probe.simulators(theta, ids), actions, probe.generators(names, "rows"))

    base = batch(theta, ids, ids)
    turned = batch(theta.flip(0), ids[::-1], ids[::-1])
    turned = Rollouts(turned.x.flip(0), turned.actions, turned.rewards.flip(0))
    try:
        renamed = batch(theta, tuple(i + 1000 for i in ids), ids)
    except S2RError as error:
        cause = "ids are used as positions; they are names (a worker gets simulators 200 .. 255 alone)"
        return [Finding(checked, REFUSED, f"simulators with ids from 1000 on fail: {error}", cause, "")]
    selected = run(probe.simulators(theta).select([2, 0]), actions, probe.generators((2, 0), "rows"))
    wrong = ~(same_rows(base, turned) & same_rows(base, renamed))
    wrong[[2, 0]] |= ~same_rows(Rollouts(base.x[[2, 0]], base.actions, base.rewards[[2, 0]]), selected)
    alone = run(probe.simulators(theta).select([1]), actions, probe.generators((1,), "rows"))
    wrong[[1]] |= ~same_rows(Rollouts(base.x[[1]], base.actions, base.rewards[[1]]), alone)
    if not bool(wrong.any()):
        return [Finding(checked, OK, "the same alone, in another order, and under another name")]
    return [_why(probe, base, wrong, batch)]


def _why(probe: Probe, base: Rollouts, wrong: Tensor, batch) -> Finding:
    """Which of the ways to depend on others it is."""
    checked, theta, ids = "one simulator beside others", probe.theta, tuple(range(len(probe.theta)))
    first = theta[:1].expand_as(theta).contiguous()
    if bool(same_rows(base, batch(first, ids, ids)).all()):
        found = "all simulators are those of the first theta"
        return Finding(checked, REFUSED, found, "theta[0] is used for all", "use row b of theta for simulator b")
    others = batch(theta, ids, (ids[0], *(i + 500 for i in ids[1:])))
    if torch.equal(base.x[1:], others.x[1:]):
        found = "the generators of all simulators but the first one change nothing"
        return Finding(checked, REFUSED, found, "generators[0] draws for all: their noise is one and the same", WRITE)
    suspects = wrong.nonzero().flatten().tolist()
    bad = suspects
    if len(suspects) <= SUSPECTS:
        fresh = 1000
        alone = [batch(theta[b : b + 1], (fresh + b,), (b,)) for b in suspects]
        unlike = [
            b
            for b, one in zip(suspects, alone, strict=True)
            if not bool(same_rows(Rollouts(base.x[[b]], base.actions, base.rewards[[b]]), one).all())
        ]
        bad = unlike or suspects
    few = len(bad) <= SUSPECTS
    return Finding(
        checked,
        REFUSED,
        f"{_all_or(ids, torch.isin(torch.arange(len(ids)), torch.tensor(bad)))} shows other readings or rewards, with "
        "the same theta and generator, alone, at another place or under another id",
        "a fault of that one simulator"
        if few
        else "generators or theta are mixed up between rows, or one depends on the others",
        "row b may use theta[b] and generators[b] only",
    )
