"""Theorems E, L and R at their own phi, B and sample sizes, on a mixture with S = A = 2 (theory.md 2.8, 3.2, 3.3).

Members of the mixture's class see an observation through its cell alone, so n observations of a state are one
multinomial draw of (cell, action, paid or not), however large n is: 10^10 observations cost what 10 do. The class has
16 sign flips with 3 gains of theta_hat each, and 16 rivals next to f*. Densities in the first two tables err by all
that the theorem allows, with a random sign; in the third they are estimated from as many readings as the theorem asks
for, merged, and used (counted_densities.py).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from counted_densities import Look, cheapest_look, see
from rich.console import Console
from rich.table import Table
from torch import Tensor

from s2r_torch.density.grid import DensityGrid
from s2r_torch.families import make_family
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.learning.rules import Evidence, RuleSettings, rule_named
from s2r_torch.planner.budget import Budget
from s2r_torch.planner.schedules import Plan, Setting, loops, paper, sweep
from s2r_torch.rng import Seed

RIVALS = torch.logspace(-5, -1, 16, dtype=torch.float64)  # 1 - gain
WORLDS = 20_000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--simulators", type=int, default=200, help="B of Theorem E, which holds for any")
    parser.add_argument("--epsilon", type=float, default=0.1, help="the worst member loses 0.18 at H = 2")
    parser.add_argument("--horizon", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)


def main(options: argparse.Namespace) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150)
    mixture = make_family("mixture", horizon=options.horizon)
    members = the_class(mixture)
    setting = setting_of(mixture, members.size, options.epsilon)
    seed = Seed.root(options.seed)
    console.print(erratum_claims(mixture, members, setting, options.simulators, options.trials, seed.child("E")))
    console.print(guarantees(mixture, members, setting, options.trials, seed.child("LR")))
    console.print(from_readings(mixture, setting, options.trials, seed.child("readings")))


def setting_of(mixture: Mixture, members: int, epsilon: float, delta: float = 0.1) -> Setting:
    """The problem that the sizes are for."""
    H, A, S = mixture.horizon, mixture.num_actions, mixture.max_states
    constants = mixture.constants()
    return Setting(H, S, A, members, epsilon, delta, constants.alpha, 1, constants.C_L, 1.0, 0.28, cover_width=S)


def the_class(mixture: Mixture, grid: DensityGrid | None = None) -> MixturePredictors:
    """16 flips times gains 1, 1/2, 0, then rivals of f* whose gain is just below 1; member 0 is f*."""
    grid = grid or DensityGrid.uniform(mixture.spec.low, mixture.spec.high, 301)
    flipped = MixturePredictors.build(mixture, grid, flips=16)
    straight = flipped.flips[:1].expand(len(RIVALS), -1, -1)
    flips, gains = torch.cat([flipped.flips, straight]), torch.cat([flipped.gains, 1 - RIVALS])
    return MixturePredictors(mixture, grid, flips, gains)


@dataclass(frozen=True, eq=False)
class Environments:
    """B environments whose densities err, and what members predict in them; all by cell."""

    mixture: Mixture
    members: MixturePredictors
    theta: Tensor  # [B]
    theta_hat: Tensor  # [B] what their densities say
    draws: np.random.Generator

    @staticmethod
    def draw(mixture: Mixture, members: MixturePredictors, B: int, error: float, seed: Seed) -> Environments:
        """theta ~ mu; `error` is that of f*, in units of reward, its sign random."""
        generator = seed.generator()
        theta = mixture.prior(B, generator)[:, 0]
        sign = 1.0 - 2.0 * torch.randint(2, (B,), generator=generator)
        wrong = (theta + sign * error / (mixture.unit / 2)).clamp(-1, 1)
        return Environments(mixture, members, theta, wrong, np.random.default_rng(generator.initial_seed()))

    @property
    def cells(self) -> Tensor:
        """W [B, xi, J]."""
        return self.mixture.cell_probabilities(self.theta[:, None])

    @property
    def rewards(self) -> Tensor:
        """Mean reward [B, xi, J, A]."""
        q, m = self.mixture.truth(self.theta[:, None]).reward, self.mixture.quadrature
        return q[:, :, ::m]

    def q(self, state: int, exact: bool = False) -> Tensor:
        """f(D_hat, x, a) [F, B, J, A], or f(D, x, a)."""
        centres = (torch.arange(self.mixture.num_cells, dtype=torch.float64) + 0.5)[:, None]
        conditioned = self.members.gains[:, None] * (self.theta if exact else self.theta_hat)
        x = centres.expand(len(self.theta), -1, 1)
        return self.members.q(conditioned, int(self.mixture.graph.layer[state]), x)

    def observed(self, state: int, n: int) -> Tensor:
        """Shares [B, J] of n observations in each cell."""
        return torch.from_numpy(self.draws.multinomial(n, self.cells[:, state].numpy()) / n)

    def tried(self, state: int, n: int) -> Tensor:
        """Shares [B, J, A, 2] of n uniform actions by cell, action and whether they were paid."""
        A, paid = self.mixture.num_actions, self.rewards[:, state] / self.mixture.payment
        p = self.cells[:, state, :, None, None] / A * torch.stack([1 - paid, paid], -1)
        return torch.from_numpy(self.draws.multinomial(n, p.flatten(1).numpy()).reshape(p.shape) / n)

    def losses(self, member: int) -> Tensor:
        """V* - V(pi^f) [B] of one member on the wrong densities, exactly."""
        best, value = self.values(member)
        return best - value

    def values(self, member: int) -> Tensor:
        """V* and V(pi^f) [2, B]."""
        graph, one = self.mixture.graph, replace(self, members=self.members.subset([member]))
        V = torch.zeros(2, len(self.theta), graph.num_states, dtype=torch.float64)  # optimal, and the policy's
        for _, state in graph.backward():
            following = graph.next_state[state]
            after = V[:, :, following.clamp(min=0)] * (following >= 0)
            Q = self.rewards[:, state] + after[:, :, None]  # [2, B, J, A]
            greedy = one.q(state)[0].argmax(-1, keepdim=True)
            chosen = torch.stack([Q[0].amax(-1), Q[1].gather(-1, greedy)[..., 0]])
            V[:, :, state] = (self.cells[:, state] * chosen).sum(-1)
        return V[:, :, 0]


class Learner:
    """TD-Eliminate, Consensus and DFS-Learn on counts, with a budget's sizes (theory.md 2.3, 2.5)."""

    def __init__(
        self,
        environments: Environments,
        budget: Budget,
        rule: str,
        on_round: Callable[[int, float, float], None] = lambda member, V_star, value: None,
    ):
        self.environments, self.budget, self.rule, self.on_round = environments, budget, rule, on_round
        F, B, xi = environments.members.size, len(environments.theta), environments.mixture.graph.num_states
        self.alive = torch.ones(F, dtype=torch.bool)
        self.V_hat = torch.zeros(F, B, xi, dtype=torch.float64)
        self.learned: list[int] = []

    def td_eliminate(self, state: int) -> None:
        shares, q = self.environments.tried(state, self.budget.n_train), self.environments.q(state)
        following = self.environments.mixture.graph.next_state[state]
        h = q - (self.V_hat[:, :, following.clamp(min=0)] * (following >= 0))[:, :, None]
        payment = self.environments.mixture.payment
        risks = (shares[..., 0] * h.square() + shares[..., 1] * (h - payment).square()).sum((-1, -2))
        self.V_hat[:, :, state] = (shares.sum((-1, -2)) * q.amax(-1)).sum(-1)
        b = self.budget
        settings = RuleSettings(b.phi, b.b_bar, b.num_members, b.delta_td)
        evidence = Evidence(risks[self.alive], b.n_train, lambda: None)
        self.alive[self.alive.clone()] = rule_named(self.rule)(evidence, settings).keep
        self.learned.append(state)

    def consensus(self, state: int, step: int) -> bool:
        shares = self.environments.observed(state, self.budget.n_test)
        self.V_hat[:, :, state] = (shares * self.environments.q(state).amax(-1)).sum(-1)
        values = self.V_hat[self.alive, :, state]
        return bool(((values.amax(0) - values.amin(0)) <= self.budget.epsilon_test(step)).all())

    def dfs_learn(self, state: int) -> None:
        graph = self.environments.mixture.graph
        step = int(graph.layer[state])
        for successor in graph.next_state[state].unique().tolist():
            unknown = successor >= 0 and successor not in self.learned
            if unknown and not self.consensus(successor, step):
                self.dfs_learn(successor)
        self.td_eliminate(state)

    def by(self, theorem: str) -> list[int]:
        """The members that a theorem speaks of."""
        return self.sim2real() if theorem == "L" else self.sweep()

    def sweep(self) -> list[int]:
        """Theorem R: TD-Eliminate at every state, last layer first; returns all survivors."""
        for _, state in self.environments.mixture.graph.backward():
            self.td_eliminate(state)
        return self.alive.nonzero().flatten().tolist()

    def sim2real(self) -> list[int]:
        """Algorithms 1 and 6, the test one-sided; returns the accepted member. Probes are on N_2 random simulators."""
        self.dfs_learn(0)
        V_star = float(self.V_hat[self.alive][0, :, 0].mean())
        while True:
            member = int(self.alive.nonzero()[-1])  # any survivor will do; f* is the first
            returns, visited = self.roll(member)
            self.on_round(member, V_star, float(returns.mean()))
            if V_star - float(returns.mean()) <= self.budget.epsilon_demand:
                return [member]
            draws = np.random.default_rng(len(self.learned))  # another one in every round
            probes = draws.permutation(len(self.environments.theta))[: self.budget.n_probes]
            for state in sorted(set(visited[probes].flatten().tolist()) - set(self.learned)):
                self.dfs_learn(state)

    def roll(self, member: int) -> tuple[Tensor, Tensor]:
        """n_1 episodes on every simulator: returns [n_1 B] and the states visited [n_1 B, H], one of each first."""
        e, rows = self.environments, torch.arange(len(self.environments.theta)).repeat(self.budget.n_rollouts)
        graph, state = e.mixture.graph, torch.zeros(len(rows), dtype=torch.int64)
        total, visited = torch.zeros(len(rows), dtype=torch.float64), []
        uniform = lambda: torch.from_numpy(e.draws.random(len(rows)))  # noqa: E731
        actions = torch.stack([e.q(s)[member].argmax(-1) for s in range(graph.num_states)], 1)  # [B, xi, J]
        for _ in range(graph.horizon):
            visited.append(state)
            cell = (uniform()[:, None] >= e.cells[rows, state].cumsum(-1)[:, :-1]).sum(-1)
            action = actions[rows, state, cell]
            total += e.mixture.payment * (uniform() * e.mixture.payment < e.rewards[rows, state, cell, action])
            state = graph.next_state[state, action]
        return total, torch.stack(visited, 1)


def erratum_claims(
    mixture: Mixture, members: MixturePredictors, setting: Setting, B: int, trials: int, seed: Seed
) -> Table:
    """Claims 3 and 4 at the paper's phi and n_train, on B of its simulators: the printed rule, and the erratum's."""
    budget, graph = paper(setting).budget, mixture.graph
    title = (
        f"claims 3 and 4 at phi = {budget.phi:.3g}, n_train = {budget.n_train:,}: worst over {trials} trials, B = {B}"
    )
    columns = ("rule", "f* kept", "state", "layer", "max |V^f - V^g|", "claimed", "max loss", "claimed")
    table = Table(*columns, title=title, title_justify="left")
    for rule in ("paper", "erratum"):
        kept, worst = 0, torch.zeros(graph.num_states, 2, dtype=torch.float64)
        for trial in range(trials):
            environments = Environments.draw(mixture, members, B, budget.phi / 2, seed.child(trial))
            learner = Learner(environments, budget, rule)
            for _, state in graph.backward():
                learner.td_eliminate(state)
                worst[state] = torch.maximum(worst[state], torch.tensor(claims(environments, learner.alive, state)))
            kept += bool(learner.alive[0])
        for state, (spread, loss) in enumerate(worst.tolist()):
            layer = int(graph.layer[state]) + 1
            numbers = zip((spread, loss), claimed(setting, budget.phi, layer), strict=True)
            cells = [f"{v:.2e}" for pair in numbers for v in pair]
            table.add_row(rule, f"{kept} of {trials}", str(state), str(layer), *cells)
    return table


def claimed(setting: Setting, phi: float, layer: int) -> tuple[float, float]:
    """Theorem E's bounds on |V^f - V^g| and on the loss of one action, in a layer 1 .. H."""
    unit, below = 25 * math.sqrt(setting.num_actions) * phi, setting.horizon - layer
    return (below + 1) * unit, (1 + 2 * below) * unit


def claims(environments: Environments, alive: Tensor, state: int) -> tuple[float, float]:
    """max over survivors and simulators of |V^f - V^g| and of V^{f*}(s) - V^{f*}(s, pi^f_D_hat), at a state."""
    W = environments.cells[:, state]
    q = environments.q(state, exact=True)
    V = (W * q[alive].amax(-1)).sum(-1)  # [F', B]
    actions = environments.q(state)[alive].argmax(-1, keepdim=True)
    chosen = q[:1].expand(len(actions), -1, -1, -1).gather(-1, actions)[..., 0]
    loss = (W * (q[0].amax(-1) - chosen)).sum(-1)
    return float((V.amax(0) - V.amin(0)).max()), float(loss.max())


def guarantees(mixture: Mixture, members: MixturePredictors, setting: Setting, trials: int, seed: Seed) -> Table:
    """Theorems L and R: V* - E V over fresh worlds, of the policy that L accepts and of the worst survivor of R."""
    title = "Theorems L and R at their own sizes, worst over trials"
    table = Table("", "phi", "B", "n_train", "f* kept", "survivors", "V* - E V", "promised", title=title)
    for name, plan in (("L", loops(setting)), ("R", sweep(setting))):
        b, kept, survivors, worst = plan.budget, 0, [], 0.0
        for trial in range(trials):
            of_trial = seed.child(name, trial)
            simulators = Environments.draw(mixture, members, b.num_simulators, b.phi / 2, of_trial.child("simulators"))
            learner = Learner(simulators, b, "sharp")
            chosen = learner.by(name)
            kept += bool(learner.alive[0])
            survivors.append(int(learner.alive.sum()))
            worlds = fresh_worlds(mixture, members, plan, of_trial.child("worlds"))
            worst = max(worst, *(float(worlds.losses(member).mean()) for member in chosen))
        counts = f"{min(survivors)} .. {max(survivors)} of {members.size}"
        sizes = (f"{b.phi:.2e}", f"{b.num_simulators:,}", f"{b.n_train:,}")
        table.add_row(name, *sizes, f"{kept} of {trials}", counts, f"{worst:.5f}", f"{setting.epsilon:g}")
    return table


def fresh_worlds(mixture: Mixture, members: MixturePredictors, plan: Plan, seed: Seed) -> Environments:
    """Worlds whose densities err by phi_R, and by everything for a share delta_R."""
    worlds = Environments.draw(mixture, members, WORLDS, plan.phi_real, seed)
    lost = torch.from_numpy(worlds.draws.random(WORLDS)) < plan.delta_real
    return replace(worlds, theta_hat=torch.where(lost, -worlds.theta, worlds.theta_hat))


@dataclass(frozen=True)
class Ended:
    """One trial of Theorem L or R on densities estimated from readings."""

    look: Look  # of simulators
    look_real: Look
    error: float  # the largest of all densities of simulators, in units of the radius
    merged: bool  # rightly, everywhere
    kept: bool  # f*
    survivors: int
    loss: float  # V* - E V over fresh worlds, of the worst member that the theorem speaks of

    def failed(self, epsilon: float) -> bool:
        return not (self.merged and self.kept and self.loss <= epsilon)


def end_to_end(mixture: Mixture, setting: Setting, theorem: str, seed: Seed, worlds: int = 2000) -> Ended:
    """Densities of all paths, merging, elimination and deployment in fresh worlds, at a theorem's own sizes."""
    plan = {"L": loops, "R": sweep}[theorem](setting)
    b, calls = plan.budget, setting.max_num_states * setting.num_actions
    look = cheapest_look(mixture, plan.density_radius, (b.num_simulators + 1) * calls, plan.delta_density)
    look_real = look
    if theorem == "R":
        radius = plan.phi_real / setting.lipschitz_bound
        look_real = cheapest_look(mixture, radius, setting.max_num_states, plan.delta_real, look.intervals)
    members = the_class(mixture, look.grid(mixture))
    simulators = Environments.draw(mixture, members, b.num_simulators, 0.0, seed.child("simulators"))
    seen = see(mixture, members, simulators.theta, look, simulators.draws)
    learner = Learner(replace(simulators, theta_hat=seen.theta_hat), b, "sharp")
    chosen = learner.by(theorem)
    real = Environments.draw(mixture, members, worlds, 0.0, seed.child("worlds"))
    real = replace(real, theta_hat=see(mixture, members, real.theta, look_real, real.draws).theta_hat)
    loss = max(float(real.losses(member).mean()) for member in chosen)
    alive, error = learner.alive, seen.error / plan.density_radius
    return Ended(look, look_real, error, seen.merged, bool(alive[0]), int(alive.sum()), loss)


def from_readings(mixture: Mixture, setting: Setting, trials: int, seed: Seed) -> Table:
    """Theorems L and R end to end on densities from readings: what failed, and the worst of all trials."""
    title = f"Theorems L and R on densities from readings, H = {mixture.horizon}, worst over {trials} trials"
    columns = ("", "n_dist", "n_real", "largest error / radius", "survivors", "V* - E V", "promised", "failed")
    table = Table(*columns, title=title)
    for theorem in "LR":
        ended = [end_to_end(mixture, setting, theorem, seed.child(theorem, trial)) for trial in range(trials)]
        sizes = (f"{ended[0].look.n:,}", f"{ended[0].look_real.n:,}", f"{max(e.error for e in ended):.2f}")
        kept = [e.survivors for e in ended]
        counts = f"{min(kept)} .. {max(kept)} of {setting.num_members}"
        failed = sum(e.failed(setting.epsilon) for e in ended)
        loss = f"{max(e.loss for e in ended):.5f}"
        table.add_row(theorem, *sizes, counts, loss, f"{setting.epsilon:g}", f"{failed} of {trials}")
    return table
