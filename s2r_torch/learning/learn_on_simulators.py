"""Algorithm 6, Learn-on-Simulators: roll a survivor out; learn where it went, until it earns what it predicted."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from s2r_torch.episodes import Rollouts, rollout
from s2r_torch.learning.elimination import Judges, Knowledge, dfs_learn


@dataclass(frozen=True)
class Round:
    """One pass of the loop."""

    member: int  # f, global index
    value: float  # V_hat(pi^f), mean return over simulators
    target: float  # V_hat*, after the calibrated correction
    learned: int  # states learned because of this round


@dataclass(frozen=True, eq=False)
class Choice:
    """The outcome: a predictor, what is known, and why the loop stopped."""

    member: int
    knowledge: Knowledge
    stopped: str  # "accepted", "no_progress" (test failed and no unlearned state was met) or "swept"
    rounds: tuple[Round, ...] = ()


def learn_on_simulators(knowledge: Knowledge, judges: Judges, V_hat_star: float) -> Choice:
    """Loops until a survivor's policy earns what the class predicted (Algorithm 6, Learn-on-Simulators).

    Args:
        knowledge: what DFS-Learn at the start left.
        judges: simulators, densities, class and budget.
        V_hat_star: estimate of the optimal value, from Algorithm 1, line 5.

    Returns:
        The member whose policy was accepted; or, when the test fails and the probes meet no unlearned state, the
        survivor that is deployed (`Knowledge.best`), with `stopped == "no_progress"`.

    Raises:
        RealizabilityError: no predictor survived.

    Paper deviation:
        The test is one-sided (theory.md C15). N_2 trajectories are used in total, and DFS-Learn is called only at
        states not yet learned (C3). "Any f" is `Knowledge.best`. A round that teaches nothing ends
        the loop, which would else go on for ever: in Theorem L its probability is part of delta (theory.md 3.2). A
        trained class overrates itself; calibration measures by how much, and V_hat* is lowered by that much
        (heuristic, 0 for an exact class).

    Cost:
        max(n_rollouts, N_2 / B) episodes per simulator and round; at most xi rounds.
    """
    target = V_hat_star - judges.elimination.value_bias
    rounds: list[Round] = []
    while True:
        member = knowledge.best()
        episodes = _rollout(member, len(rounds), judges)
        value = float(episodes.returns.mean())
        unlearned = [s for s in _probed_states(episodes, len(rounds), judges) if not knowledge.learned[s]]
        accepted = target - value <= judges.budget.epsilon_demand
        rounds.append(Round(member, value, target, 0 if accepted else len(unlearned)))
        if accepted or not unlearned:
            return Choice(member, knowledge, "accepted" if accepted else "no_progress", tuple(rounds))
        for state in unlearned:  # deepest first, so none of them is learned on behalf of another
            knowledge = dfs_learn(state, knowledge, judges)


def _rollout(member: int, number: int, judges: Judges) -> Rollouts:
    """n_1 episodes of pi^f on every simulator, or more where N_2 probes need them (lines 4-5)."""
    act = judges.ensemble.subset([member]).evaluator(judges.D_hat).policy_of(0)
    seed = judges.seed.child("rollout", number)
    n = max(judges.budget.n_rollouts, _probes_per_simulator(judges))
    return rollout(judges.simulators.for_purpose("rollout"), act, n, seed)


def _probed_states(episodes: Rollouts, number: int, judges: Judges) -> list[int]:
    """The distinct states on N_2 trajectories, chosen before they are looked at, deepest first (theory.md C3)."""
    generator = judges.seed.child("probe", number).generator()
    visited = judges.graph.visited(episodes.actions)  # [B, n, H]
    B, each = len(visited), _probes_per_simulator(judges)
    rows = torch.randperm(B, generator=generator)[: judges.budget.n_probes] if each == 1 else slice(None)
    states = {s for s in visited[rows, :each].unique().tolist() if s >= 0}
    return sorted(states, key=lambda s: -int(judges.graph.layer[s]))


def _probes_per_simulator(judges: Judges) -> int:
    """ceil(N_2 / B); where it is 1, N_2 of the simulators are chosen."""
    return -(-judges.budget.n_probes // len(judges.simulators))
