"""OLIVE: its errors against loops and identities, the rank of the exact error matrix, a loop that ends in time."""

import pytest
import torch
from support.exact_class import Exact
from support.known import worlds_of

from s2r_torch.comparators.olive import OLIVELearner, own_errors, rolled_in
from s2r_torch.comparators.random_actions import uniform
from s2r_torch.episodes import Transitions, rollout
from s2r_torch.families import exact
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed
from s2r_torch.runs.evaluation import attempt_values, optimal_values

PROBLEM = Exact(Mixture(horizon=2), gains=(1.0,))
DEEP = Exact(Mixture(horizon=3, max_states=3), flips=64, gains=(1.0,))
Z = 4.5  # standard errors


def one_world(problem: Exact, seed: int = 0):
    """A world, all flips at its true density, and where f* is among them."""
    worlds = worlds_of(problem.mixture, 1, seed)
    group = AtTheta(problem.ensemble.groups[0], float(worlds.theta))
    return worlds, Ensemble(problem.ensemble.problem, (group,)), problem.f_star


class AtTheta:
    """The flips of the exact class at the very theta of a world: f* without any density error."""

    def __init__(self, flips, theta: float):
        self.flips, self.theta, self.size = flips, theta, flips.size

    def condition(self, D, readings=None):
        return torch.full((self.size, len(D)), self.theta, dtype=torch.float64)

    def q(self, conditioned, step, x):
        return self.flips.q(conditioned, step, x)

    def subset(self, members):
        return AtTheta(self.flips.subset(members), self.theta)


def unseen(bank):
    return torch.zeros(1, bank.problem.graph.num_states, 0)


def test_average_errors_are_those_of_a_loop():
    worlds, bank, _ = one_world(PROBLEM)
    seen = rollout(worlds.guard("test"), uniform(2, Seed.root(0)), 25, Seed.root(1))
    evaluator = bank.subset(range(5)).evaluator(unseen(bank))
    for step, following in ((0, seen.x[:, :, 1]), (1, None)):
        data = Transitions(seen.x[:, :, step], seen.actions[:, :, step], seen.rewards[:, :, step])
        mean, square = evaluator.average_bellman_errors(step, data, following)
        for f in range(5):
            errors = []
            for i in range(25):
                q = evaluator.q_of(f, step, data.x[:, i : i + 1])[0, 0].tolist()
                a = int(data.actions[0, i])
                after = 0.0 if following is None else max(evaluator.q_of(f, 1, following[:, i : i + 1])[0, 0].tolist())
                greedy = a == q.index(max(q))
                errors.append(2 * greedy * (q[a] - float(data.rewards[0, i]) - after))
            assert float(mean[f, 0]) == pytest.approx(sum(errors) / 25, abs=1e-12)
            assert float(square[f, 0]) == pytest.approx(sum(e * e for e in errors) / 25, abs=1e-12)


def test_f_star_has_no_error_however_it_is_reached():
    """For 50 roll-ins by other members' policies: |mean| within 4.5 standard errors of 0."""
    worlds, bank, f_star = one_world(PROBLEM)
    star = bank.subset([f_star]).evaluator(unseen(bank))
    for number in range(50):
        other = bank.subset([number]).evaluator(unseen(bank))
        step = number % 2
        seen = rolled_in(worlds.rewarded(0), other, step, 400, Seed.root(number))
        data = Transitions(seen.x[:, :, step], seen.actions[:, :, step], seen.rewards[:, :, step])
        mean, square = star.average_bellman_errors(step, data, None if step else seen.x[:, :, 1])
        error = float(((square - mean**2) / 400).sqrt())
        assert abs(float(mean)) <= Z * error


def test_own_errors_telescope_to_how_much_a_member_overrates_itself():
    """sum_h E_h(f, pi_f) = V_f - V(pi_f), V(pi_f) by quadrature."""
    worlds, bank, _ = one_world(PROBLEM)
    for member in range(0, 64, 7):
        own = bank.subset([member]).evaluator(unseen(bank))
        seen = rollout(worlds.rewarded(0), own.policy_of(0), 20_000, Seed.root(member))
        first = float(own.greedy_values(0, seen.x[:, :, 0]))
        value = float(exact.policy_values(worlds.truth, own.policy_of(0))[0, 0])
        error = float(seen.returns.std()) / 20_000**0.5
        assert abs(float(own_errors(own, seen).sum()) - (first - value)) <= Z * error


def exact_errors(problem: Exact, worlds, bank) -> torch.Tensor:
    """E[f, g, h]: the expected Bellman error of g at layer h after the policy of f, by quadrature."""
    truth, graph = worlds.truth, problem.mixture.graph
    evaluator = bank.evaluator(unseen(bank))
    size, (_, xi, m, A) = bank.size, truth.reward.shape
    q = torch.zeros(size, xi, m, A, dtype=torch.float64)
    for s in range(xi):
        for f in range(size):
            q[f, s] = evaluator.q_of(f, int(graph.layer[s]), truth.x[:, s])[0]
    greedy, weight = q.argmax(-1), truth.weight[0]  # [size, xi, m]
    reach = torch.zeros(size, xi, dtype=torch.float64)
    reach[:, 0] = 1
    value = (q.amax(-1) * weight).sum(-1)  # [size, xi] of the next state, by g itself
    term = torch.zeros(size, xi, dtype=torch.float64)  # of g at state s, following its own action there
    for s in graph.layer.argsort(stable=True).tolist():
        following = graph.next_state[s]
        after = value[:, following.clamp(min=0)] * (following >= 0)
        own = q[:, s] - truth.reward[0, s] - after[:, None]
        term[:, s] = (own.gather(-1, greedy[:, s, :, None]).squeeze(-1) * weight[s]).sum(-1)
        for a in range(A):
            if int(following[a]) >= 0:
                reach[:, following[a]] += reach[:, s] * ((greedy[:, s] == a) * weight[s]).sum(-1)
    found = torch.zeros(size, size, graph.horizon, dtype=torch.float64)
    for h in range(graph.horizon):
        states = graph.states_of(h)
        found[:, :, h] = reach[:, states] @ term[:, states].T
    return found


@pytest.mark.parametrize("problem", [PROBLEM, DEEP], ids=["H=2", "H=3, S=3"])
def test_the_bellman_rank_of_a_layer_is_at_most_its_number_of_states(problem):
    """The independent check of what the planner says of rivals: max_h |S_h|, not H S."""
    worlds, bank, f_star = one_world(problem)
    errors = exact_errors(problem, worlds, bank)
    for h, states in enumerate(problem.mixture.graph.states_per_layer):
        assert int(torch.linalg.matrix_rank(errors[:, :, h], atol=1e-9)) <= states
    assert float(errors[:, f_star].abs().max()) < 1e-12


@pytest.mark.parametrize("problem", [PROBLEM, DEEP], ids=["H=2", "H=3, S=3"])
def test_with_exact_errors_the_loop_ends_within_the_rank(problem):
    """No more failed rounds than the ranks of all layers together (H S at most), and in an optimal policy."""
    worlds, bank, f_star = one_world(problem)
    errors, graph = exact_errors(problem, worlds, bank), problem.mixture.graph
    overrated = errors.diagonal(dim1=0, dim2=1).T.sum(-1)  # V_f - V(pi_f)
    best = float(optimal_values(worlds)[0])
    alive = torch.ones(bank.size, dtype=torch.bool)
    rounds = 0
    while rounds <= sum(graph.states_per_layer):
        chosen = int(alive.nonzero()[0])  # flips have equal V: any of them is optimistic
        if float(overrated[chosen]) < 1e-9:
            break
        step = int(errors[chosen, chosen].argmax())
        alive &= errors[chosen, :, step].abs() < 1e-9
        rounds += 1
    assert float(overrated[chosen]) < 1e-9 and bool(alive[f_star]) and rounds <= sum(graph.states_per_layer)
    value = float(exact.policy_values(worlds.truth, bank.evaluator(unseen(bank)).policy_of(chosen))[0, 0])
    assert value == pytest.approx(best, abs=1e-9)


def learner(problem: Exact, theta: list[float], n: int, **changes) -> OLIVELearner:
    star = problem.ensemble.subset([problem.f_star])
    settings = {"epsilon": 0.05, "slack": 0.02, "rounds": 20, **changes}
    return OLIVELearner(star, problem.densities(torch.tensor(theta).double()[:, None]), n=n, **settings)


def test_many_episodes_find_the_sign_of_theta():
    worlds = worlds_of(Mixture(horizon=2, theta_law="two_point"), 10)
    attempt = learner(PROBLEM, [-0.8, 0.8], 1500).attempt(worlds)
    assert attempt.accepted >= 0.9 and attempt_values(attempt, worlds, 1).tolist() == pytest.approx(
        optimal_values(worlds).tolist(), abs=1e-9
    )


def test_an_emptied_class_gives_the_best_measured_policy():
    """Both overrate themselves and go, the one that is right about theta's sign first: it acts all the same."""
    worlds = worlds_of(PROBLEM.mixture, 1)
    worlds.theta[:] = 0.8
    attempt = learner(PROBLEM, [1.0, -0.9], 4000, slack=10.0, epsilon=0.0001).attempt(worlds)
    assert attempt.accepted == 0.0 and attempt.rewarded == 5 * 4000
    assert float(attempt_values(attempt, worlds, 1)) > 0.9 * float(optimal_values(worlds))
