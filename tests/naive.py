"""Algorithms 2 to 7, loop for loop, in numpy: the paper's boxes with the corrections C1-C15 of theory.md 1.2.

Slow and obvious on purpose, and nothing of the library is used. A predictor is a function f(b, h, x) -> [A] that
already knows the densities of simulator b; samples are plain arrays, drawn elsewhere and handed in by a function.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.polynomial import legendre

# -- densities ------------------------------------------------------------------------------------------------------


@functools.cache
def gamma_coefficients(order):
    """The paper's kernel: sum over m < ceil(order) of psi_m(0) psi_m(t), psi_m^2 = (2 m + 1) / 2 P_m^2."""
    series = [(2 * m + 1) / 2 * legendre.legval(0.0, [0.0] * m + [1.0]) for m in range(math.ceil(order))]
    return tuple(legendre.leg2poly(series).tolist())


def gamma(t, order):
    if not -1 <= t <= 1:
        return 0.0
    return sum(c * t**k for k, c in enumerate(gamma_coefficients(order)))


def kde(x, nodes, h, order):
    """D_hat at every node, from samples x [n] of one number each."""
    D = np.zeros(len(nodes))
    for g in range(len(nodes)):
        for i in range(len(x)):
            D[g] += gamma((x[i] - nodes[g]) / h, order) / (len(x) * h)
    return D


# -- Algorithm 2 ----------------------------------------------------------------------------------------------------


class AmbiguousError(Exception):
    """A distance close to the threshold."""


@dataclass
class Found:
    """What DFS-Distribution has found so far; paths stand for states."""

    representatives: list = field(default_factory=list)  # the paths that were new, in the order they were met
    pilots: dict = field(default_factory=dict)  # representative -> [B][G]
    same_as: dict = field(default_factory=dict)  # every path known -> its representative
    visited: list = field(default_factory=list)
    thresholds: list = field(default_factory=list)  # of every visited path


def dfs_distribution(path, found, *, draw, estimate, horizon, num_actions, zeta=None, relative=0.5, margin=0.25):
    """Algorithm 2. draw(path) -> samples [B][n]; estimate(samples [n]) -> [G].

    Corrections: stop at the horizon (C2); only paths of the same length, the nearest of them, by the median over
    simulators (C12).
    """
    found.visited.append(path)
    D = [estimate(x) for x in draw(path)]
    height = np.sort([max(d) for d in D])[(len(D) - 1) // 2]
    threshold = zeta / 2 if zeta else relative * height
    found.thresholds.append(threshold)
    nearest, distance = None, math.inf
    for other in found.representatives:
        if len(other) == len(path):
            per_simulator = sorted(max(abs(D[b] - found.pilots[other][b])) for b in range(len(D)))
            median = per_simulator[(len(D) - 1) // 2]
            if median < distance:
                nearest, distance = other, median
    if nearest is not None and abs(distance - threshold) < margin * threshold:
        raise AmbiguousError(path, nearest)
    if distance < threshold:
        for known in list(found.same_as):  # line 5: p and its descendants are p' and its descendants
            if known[: len(nearest)] == nearest:
                found.same_as[path + known[len(nearest) :]] = found.same_as[known]
        return found
    found.representatives.append(path)
    found.pilots[path] = D
    found.same_as[path] = path
    if len(path) < horizon - 1:
        for a in range(num_actions):
            found = dfs_distribution(
                (*path, a),
                found,
                draw=draw,
                estimate=estimate,
                horizon=horizon,
                num_actions=num_actions,
                zeta=zeta,
                relative=relative,
                margin=margin,
            )
    return found


# -- Algorithms 3, 4 and 5 ------------------------------------------------------------------------------------------


class EmptiedError(Exception):
    """No predictor survived."""


@dataclass
class World:
    """What Algorithms 3 to 6 are given. Paths stand for states through `state_of`."""

    predictors: list  # [F] functions (b, h, x) -> [A]
    B: int
    horizon: int
    num_actions: int
    state_of: Callable  # path -> state, or None outside of what is looked at, where nothing is earned
    test_samples: Callable  # state -> x [B, n]
    train_samples: Callable  # state -> x, a, r, each [B, n]
    epsilon_test: Callable  # depth of the parent -> threshold
    rule: str
    numbers: dict  # phi, b_bar, delta, and reward_width
    on_empty: str = "best"


@dataclass
class Memory:
    alive: list
    V_hat: dict = field(default_factory=dict)  # (f, b, state) -> number
    learned: set = field(default_factory=set)
    risk: dict = field(default_factory=dict)  # f -> pooled risk, summed over learned states
    calls: list = field(default_factory=list)


def dfs_learn(path, world, memory):
    """Algorithm 3; no loop at the last layer (C1), learned states are not learned again (F4)."""
    if len(path) < world.horizon - 1:
        for a in range(world.num_actions):
            if world.state_of((*path, a)) is None or world.state_of((*path, a)) in memory.learned:
                continue
            if not consensus((*path, a), world.epsilon_test(len(path)), world, memory):
                dfs_learn((*path, a), world, memory)
    td_eliminate(path, world, memory)


def greedy_value(f, b, h, samples):
    return sum(max(f(b, h, x)) for x in samples) / len(samples)


def consensus(path, epsilon_test, world, memory):
    """Algorithm 4; a state whose value every survivor gave before is not looked at again."""
    state = world.state_of(path)
    memory.calls.append(("Consensus", state))
    if any((f, b, state) not in memory.V_hat for f in memory.alive for b in range(world.B)):
        memory.calls.append(("samples", state))
        x = world.test_samples(state)
        for f in memory.alive:
            for b in range(world.B):
                memory.V_hat[f, b, state] = greedy_value(world.predictors[f], b, len(path), x[b])
    for b in range(world.B):
        for f in memory.alive:
            for g in memory.alive:
                if abs(memory.V_hat[f, b, state] - memory.V_hat[g, b, state]) > epsilon_test:
                    return False
    return True


def td_eliminate(path, world, memory):
    """Algorithm 5, with the rules of theory.md 2.3 and 2.6."""
    state = world.state_of(path)
    x, a, r = world.train_samples(state)
    n = len(x[0])
    h, risk = {}, {}  # (f, b) -> residuals h_f(x_i, a_i) [n], and their risk
    for f in memory.alive:
        for b in range(world.B):
            values = []
            for i in range(n):
                after = 0.0
                if len(path) < world.horizon - 1 and world.state_of((*path, int(a[b][i]))) is not None:
                    after = memory.V_hat[f, b, world.state_of((*path, int(a[b][i])))]
                values.append(world.predictors[f](b, len(path), x[b][i])[int(a[b][i])] - after)
            h[f, b] = values
            risk[f, b] = sum((values[i] - r[b][i]) ** 2 for i in range(n)) / n
    kept = keep(memory.alive, h, risk, n, world)
    if not kept:
        if world.on_empty != "best":
            raise EmptiedError(state)
        kept = [min(memory.alive, key=lambda f: pooled(risk, f, world.B))]
    for f in memory.alive:
        memory.risk[f] = memory.risk.get(f, 0.0) + pooled(risk, f, world.B)
        for b in range(world.B):
            memory.V_hat[f, b, state] = greedy_value(world.predictors[f], b, len(path), x[b])  # C6
    memory.alive = kept
    memory.learned.add(state)
    memory.calls.append(("TD-Eliminate", state))


def pooled(risk, f, B):
    return sum(risk[f, b] for b in range(B)) / B


def keep(alive, h, risk, n, world):
    """Line 5 of Algorithm 5."""
    F, B, phi, b_bar, delta = len(world.predictors), world.B, *(world.numbers[k] for k in ("phi", "b_bar", "delta"))
    width, L = world.numbers["reward_width"], math.log(4 * F * B / delta)
    if world.rule in ("pooled", "calibrated"):
        tau = (b_bar + width * math.sqrt(math.log(F / delta) / (2 * n * B))) ** 2
        least = min(pooled(risk, f, B) for f in alive)
        return [f for f in alive if pooled(risk, f, B) <= least + tau]
    kept = []
    for f in alive:
        good = True
        for b in range(B):
            if world.rule == "pairwise":
                K = 2 * b_bar + width * math.sqrt(2 * L / n)
                for g in alive:
                    d = math.sqrt(sum((h[f, b][i] - h[g, b][i]) ** 2 for i in range(n)) / n)
                    good = good and risk[f, b] - risk[g, b] <= K * d - d**2 + 1e-12
            else:
                worst = max(phi, 2 * b_bar / 3)
                box = 22 / n * math.log(2 * F * B / delta)
                tau = {
                    "paper": 2 * phi**2 + 8 * phi + box,
                    "erratum": 2 * worst**2 + 8 * worst**2 + box,
                    "krishnamurthy": 2 * phi**2 + box,
                    "sharp": (b_bar + width * math.sqrt(L / (2 * n))) ** 2,
                }[world.rule]
                good = good and risk[f, b] <= min(risk[g, b] for g in alive) + tau
        if good:
            kept.append(f)
    return kept


# -- Algorithm 6 ----------------------------------------------------------------------------------------------------


def learn_on_simulators(world, memory, V_hat_star, *, roll, probes, epsilon_demand, path_of):
    """Algorithm 6: one-sided test (C15), N_2 probes in total and only unlearned states (C3).

    roll(f, round) -> states [B][n][H], returns [B][n]; probes(round) -> the (b, j) that are looked at.

    Returns (f, why, values of all rounds).
    """
    values = []
    while True:
        f = min(memory.alive, key=lambda g: memory.risk[g])
        states, returns = roll(f, len(values))
        probed = set()
        for b, j in probes(len(values)):
            for h in range(world.horizon):
                probed.add((world.horizon - h, states[b][j][h]))
        values.append(sum(sum(row) for row in returns) / (len(returns) * len(returns[0])))
        if V_hat_star - values[-1] <= epsilon_demand:
            return f, "accepted", values
        unlearned = [state for _, state in sorted(probed) if state not in memory.learned]  # deepest first
        if not unlearned:
            return f, "no_progress", values
        for state in unlearned:
            if state not in memory.learned:
                dfs_learn(path_of(state), world, memory)


def greedy(values):
    """The first best action."""
    best = 0
    for a in range(1, len(values)):
        if values[a] > values[best]:
            best = a
    return best


# -- Algorithm 7 ----------------------------------------------------------------------------------------------------


def deploy(cover, *, state_of, num_states, draw, estimate):
    """Algorithm 7 along a path cover (theory.md 3.1): draw(actions) -> samples [H][n] of one batch of episodes."""
    samples = {}
    for actions in cover:
        x = draw(actions)
        for h in range(len(x)):
            samples.setdefault(state_of(actions[:h]), []).extend(x[h])  # of every sequence through the state
    return [estimate(samples[s]) for s in range(num_states)]
