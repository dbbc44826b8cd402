"""Promises hold at the rate that they state: on the smallest mixture, true values are known exactly."""

import functools
import json
from dataclasses import replace

import pytest
import torch
from scipy import stats
from support.exact_class import SMALLEST, exact_problem
from support.pac_checks import check_failure_rate
from support.policies import certificate_by_hand

from s2r_torch.assurance import confidence
from s2r_torch.assurance.certify import CertificateSettings, certify, gap_bounds, share_bound, survivor_values
from s2r_torch.assurance.rehearsal import Rehearsal, rehearse
from s2r_torch.coverage import path_cover
from s2r_torch.deployment.certificate import Certificate
from s2r_torch.deployment.likeness import Sight
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Rollouts
from s2r_torch.errors import SettingError
from s2r_torch.families import exact
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.rng import Seed

PROBLEM = exact_problem(SMALLEST)
DELTA = 0.1
SETTINGS = CertificateSettings(simulators=60, n_rollouts=20, n_accurate=200, delta=DELTA, share=0.8, delta_world=0.02)


@functools.cache
def wrong_policy() -> MetaPolicy:
    """A member that is not f*, and at least 0.01 worse: what a run might deploy."""
    theta = PROBLEM.theta(400, Seed.root(0))
    regret = PROBLEM.regrets(PROBLEM.densities(theta), theta, list(range(PROBLEM.ensemble.size))).mean(1)
    chosen = next(int(f) for f in regret.argsort() if regret[f] > 0.01)
    graph = PROBLEM.mixture.graph
    return MetaPolicy(PROBLEM.ensemble, chosen, PROBLEM.estimator, path_cover(graph), 30)


def rehearsed(count: int, seed: Seed, n_rollouts: int = SETTINGS.n_rollouts):
    """(theta, simulators, rehearsal) of fresh draws."""
    theta = PROBLEM.theta(count, seed)
    simulators = PROBLEM.guard(theta)
    return theta, simulators, rehearse(wrong_policy(), simulators, n_rollouts, seed)


def true_values(theta, D_hat):
    """Exact V of the policies conditioned on D_hat, and V* [M]."""
    truth = PROBLEM.mixture.truth(theta)
    act = wrong_policy().condition(D_hat).act
    return exact.policy_values(truth, act)[:, 0], exact.optimal(truth)[0][:, 0]


@functools.cache
def population():
    """Exact V and V* of 4000 deployments."""
    theta, _, rehearsal = rehearsed(4000, Seed.root(99), 1)
    return true_values(theta, rehearsal.D_hat)


@functools.cache
def certificates(count: int = 100) -> list[Certificate]:
    """As many certificates from fresh draws, with phi_T computed from true densities (an oracle)."""
    (group,) = PROBLEM.ensemble.groups
    theta, simulators, _ = rehearsed(400, Seed.root(98), 1)
    accurate = estimate_densities(
        simulators, PROBLEM.mixture.graph, PROBLEM.estimator, SETTINGS.n_accurate, Seed.root(97)
    )
    errors = [group.density_error(accurate[b : b + 1], theta[b : b + 1]) for b in range(len(theta))]
    settings = replace(SETTINGS, density_error=sum(errors) / len(errors))
    made = []
    for number in range(count):
        seed = Seed.root(1).child(number)
        _, simulators, rehearsal = rehearsed(SETTINGS.simulators, seed)
        made.append(certify(wrong_policy(), simulators, rehearsal, settings, seed.child("certify")))
    return made


@pytest.mark.statistical
def test_the_value_bound_holds_at_its_rate():
    value = float(population()[0].mean())
    error = float(population()[0].std()) / len(population()[0]) ** 0.5
    bounds = [c.value_lower for c in certificates()]
    check_failure_rate(sum(b > value + 3 * error for b in bounds), len(bounds), DELTA)
    assert sum(b > 0.6 * value for b in bounds) > len(bounds) / 2  # it says something


@pytest.mark.statistical
def test_the_share_bound_holds_at_its_rate():
    """At least 80 % of worlds are worth the promised value."""
    values, bounds = population()[0], [c.share_value for c in certificates()]
    shares = [float((values >= b).double().mean()) for b in bounds]
    check_failure_rate(sum(s < SETTINGS.share - 0.02 for s in shares), len(bounds), DELTA)
    assert sum(b > 0 for b in bounds) > len(bounds) / 2


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["performance_difference", "paired", "upper_minus_lower", "least"])
def test_the_gap_bounds_hold_at_their_rate(name):
    value, best = population()
    gap = float((best - value).mean())
    bounds = [getattr(c.gap, name) for c in certificates()]
    check_failure_rate(sum(b < gap for b in bounds), len(bounds), DELTA)
    assert all(c.gap.proved for c in certificates())


@pytest.mark.statistical
def test_advantages_of_f_star_sum_to_the_gap():
    """theory.md 4.2: with exact densities, E sum_h (max_a f* - f*(a_h)) = V* - V, for any policy."""
    theta, _, rehearsal = rehearsed(600, Seed.root(5), 100)
    D = PROBLEM.densities(theta)
    advantage, start, moved = survivor_values(PROBLEM.ensemble, rehearsal, D, D)
    value, best = true_values(theta, rehearsal.D_hat)
    difference = advantage[PROBLEM.f_star] - (best - value)
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / len(theta) ** 0.5
    above = start[PROBLEM.f_star] - best
    assert abs(float(above.mean())) < 4 * float(above.std()) / len(theta) ** 0.5
    assert float(moved.max()) == 0.0


def by_hand(M=7, k=5, seed=0):
    """A rehearsal of random episodes with two densities."""
    g, horizon = torch.Generator().manual_seed(seed), PROBLEM.mixture.horizon
    theta = PROBLEM.theta(M, Seed.root(seed))
    D = PROBLEM.densities(theta)
    x = 2 * torch.rand(M, k, horizon, 1, dtype=torch.float64, generator=g)
    actions = torch.randint(2, (M, k, horizon), generator=g)
    rewards = torch.rand(M, k, horizon, dtype=torch.float64, generator=g) / horizon
    other = PROBLEM.densities((theta + 0.1).clamp(-1, 1))
    sight = Sight(D[:, :0], D[:, :0], D[:, :0, 0])  # gap bounds do not look at it
    return Rehearsal(D, sight, Rollouts(x, actions, rewards)), D, other


def test_gap_bounds_agree_with_loops():
    rehearsal, D, other = by_hand()
    M, k, horizon = rehearsal.rollouts.actions.shape
    settings = replace(SETTINGS, bound="hoeffding")
    gap = gap_bounds(PROBLEM.ensemble, rehearsal, D, other, settings)
    (group,) = PROBLEM.ensemble.groups
    q = [group.q(group.condition(D), h, rehearsal.rollouts.x[:, :, h]) for h in range(horizon)]  # [F, M, k, A] each
    p = [group.q(group.condition(other), h, rehearsal.rollouts.x[:, :, h]) for h in range(horizon)]
    G = rehearsal.rollouts.rewards.sum(-1).mean(-1)
    phi_T = differences = paired = starts = 0.0
    for f in range(PROBLEM.ensemble.size):
        moved, A, u = [], [], []
        for i in range(M):
            moved.append(max(float((q[h][f, i] - p[h][f, i]).abs().max()) for h in range(horizon)))
            A.append(0.0)
            for e in range(k):
                for h in range(horizon):
                    row = q[h][f, i, e]
                    A[-1] += float(row.max() - row[int(rehearsal.rollouts.actions[i, e, h])]) / k
            u.append(sum(float(q[0][f, i, e].max()) for e in range(k)) / k)
        A, u = torch.tensor(A, dtype=torch.float64), torch.tensor(u, dtype=torch.float64)
        phi_T = max(phi_T, 2**0.5 * sum(moved) / M)
        third = settings.delta / 3
        differences = max(differences, float(confidence.upper(A, third, low=0.0, high=float(horizon))))
        paired = max(paired, float(confidence.upper(u - G, third, low=-1.0, high=1.0)))
        starts = max(starts, float(confidence.upper(u, third / 2)))
    lower = float(confidence.lower(G, third / 2, bound="hoeffding"))
    assert gap.density_error == pytest.approx(phi_T, abs=1e-6)
    assert gap.performance_difference == pytest.approx(min(1.0, differences + 2 * horizon * phi_T), abs=1e-5)
    assert gap.paired == pytest.approx(min(1.0, paired + phi_T), abs=1e-5)
    assert gap.upper_minus_lower == pytest.approx(min(1.0, starts + phi_T - lower), abs=1e-5)
    assert gap.density_error_kind == "measured" and not gap.proved


@pytest.mark.parametrize(("M", "share", "delta"), [(200, 0.9, 0.05), (60, 0.8, 0.1), (40, 0.5, 0.01)])
def test_the_order_statistic_is_the_largest_allowed(M, share, delta):
    """With returns that are all alike within a simulator, the bound sits on the r-th smallest simulator."""
    settings = CertificateSettings(share=share, delta=delta)
    levels = torch.linspace(0.2, 0.9, M, dtype=torch.float64)
    returns = levels[torch.randperm(M, generator=torch.Generator().manual_seed(1))][:, None].expand(M, 400)
    each = confidence.lower(returns, settings.delta_world).sort().values
    r = int((each <= share_bound(returns, settings) + 1e-12).sum())
    q = (1 - share) * (1 - settings.delta_world)
    assert stats.binom.sf(r - 1, M, q) >= 1 - delta > stats.binom.sf(r, M, q)


def test_too_few_simulators_promise_nothing_on_most_worlds():
    settings = replace(SETTINGS, share=0.95, delta_world=0.01)
    assert share_bound(torch.ones(20, 50), settings) == 0.0
    certificate = replace(certificate_by_hand(), share_value=0.0, simulators=20)
    assert "20 simulators are too few" in certificate.page()


def test_the_page_says_what_is_promised_and_what_is_not():
    page = certificate_by_hand().page()
    for words in ("at least 0.650", "95%", "At least 90%", "0.400 or more", "0.100 above it", "Not promised", "(A2)"):
        assert words in page
    assert "HEURISTIC" not in page
    trained = certificate_by_hand(realizable=False).page()
    assert "HEURISTIC" in trained and "never holds an exact predictor" in trained
    assert "measured (0.01)" in certificate_by_hand(density_error_kind="measured").page()
    contradicted = certificate_by_hand(paired=-0.163).page()
    assert "came out as -0.163, which is" in contradicted and "No policy earns more" not in contradicted
    for text in (page, trained, contradicted):
        assert all(len(line) <= 120 for line in text.splitlines()) and len(text.splitlines()) < 40


def test_the_page_says_how_sure_each_line_is_and_what_refusals_cost():
    page = certificate_by_hand().page()
    for words in ("confidence 95% by itself; all 4 together with at least 80%", "1. As used, it earns at least 0.640"):
        assert words in page
    assert "refused counts as 0.000" in page and "2 of 200 were refused" in page and "0.6% to 1.5% by this one" in page
    never = replace(certificate_by_hand(), refusals=None).page()
    assert "worlds are never refused" in never and "0.640" not in never


def test_exact_values_and_refusals_enter_the_promises():
    """Returns are noisy 0s and 1s; exact values sharpen both promises. A fifth of the worlds is refused."""
    M, k = 200, 50
    exact_values = torch.linspace(0.5, 0.9, M, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    returns = (torch.rand(M, k, dtype=torch.float64, generator=g) < exact_values[:, None]).double()
    settings = CertificateSettings(n_rollouts=k)
    noisy, sharp = share_bound(returns, settings), share_bound(returns, settings, exact_values)
    assert noisy < sharp - 0.03 and 0.5 < sharp <= 0.54  # the 10 % quantile is 0.54


class Refusing:
    """A reference that refuses the first simulators of any."""

    can_refuse, scores = True, torch.zeros(2000, 2)

    def __init__(self, count):
        self.count = count

    def refuses(self, sight, passages):
        return torch.arange(len(sight.first)) < self.count

    def false_alarms(self, level):
        return 0.01, 0.006, 0.015


def test_refused_worlds_count_as_what_is_done_there_instead():
    theta, simulators, rehearsal = rehearsed(60, Seed.root(3))
    policy = replace(wrong_policy(), reference=Refusing(12))
    values = torch.full((60,), 0.5, dtype=torch.float64)
    run = (policy, simulators, rehearsal, SETTINGS, Seed.root(4))
    zero = certify(*run, exact_values=values)
    assert (zero.value_mean, zero.used_mean, zero.refused) == (0.5, 0.4, 12)
    assert 0 < zero.used_lower < zero.value_lower <= 0.5 and zero.share_value == 0.5
    fallback = certify(*run, exact_values=values, refused_values=torch.full((60,), 0.25).double())
    assert fallback.used_mean == pytest.approx(0.45) and fallback.refused_value == 0.25
    assert certify(*run).refusals.scores == 2000
    nobody = certify(wrong_policy(), *run[1:])
    assert nobody.refusals is None and nobody.used_lower == nobody.value_lower and nobody.refused == 0


def test_json_round_trip():
    certificate = certificate_by_hand()
    assert Certificate.from_json(json.loads(json.dumps(certificate.to_json()))) == certificate


@pytest.mark.parametrize(
    "wrong",
    [
        {"simulators": 1},
        {"n_rollouts": 0},
        {"delta": 0.0},
        {"share": 1.0},
        {"delta_world": 1.0},
        {"scores": 0},
        {"bound": "hope"},
        {"density_error": -1.0},
    ],
)
def test_settings_are_checked(wrong):
    with pytest.raises(SettingError, match=f"expected {next(iter(wrong))}"):
        CertificateSettings(**wrong)
