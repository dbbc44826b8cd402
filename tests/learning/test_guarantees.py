"""The theorems, end to end, on the mixture family: exact values, the exact class, many seeds, failures against delta.

Densities are estimated. The bias bound is an oracle's: b_bar = 2 phi_D + omega (theory.md 2.1), where phi_D is computed
from the judges' true theta, and omega is Hoeffding's bound on V_hat for the true range of greedy values (2.5). Members
of the class are shuffled, so f* is nowhere in particular. With delta = 0.1, five failures of six trials are too many:
that is the least power of a test below.
"""

import math
from dataclasses import replace

import pytest
import torch
from support.exact_class import BANDWIDTH, CASES, SMALLEST, Exact, exact_problem
from support.pac_checks import check_failure_rate
from torch import Tensor

from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import sup_distance
from s2r_torch.density.radius import explicit_radius
from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Ledger
from s2r_torch.families import exact
from s2r_torch.learning.elimination import Elimination, Judges, Knowledge, consensus, dfs_learn, td_eliminate
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.learning.learn_on_simulators import learn_on_simulators
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.learning.sim2real import Trial, method_named
from s2r_torch.learning.sweep import sweep
from s2r_torch.planner.budget import Budget, accuracy_of, practical
from s2r_torch.rng import Seed

pytestmark = pytest.mark.statistical

DELTA = 0.1


def budget_for(problem: Exact, **changes) -> Budget:
    mixture = problem.mixture
    sizes = {"num_simulators": 4, "n_merge": 20_000, "n_dist": 3000, "n_test": 1500, "n_train": 1500}
    sizes |= {"n_rollouts": 100, "n_probes": 16, "n_real": 1, "epsilon": 0.05, "delta": DELTA, "b_bar": 1.0}
    budget = practical(
        mixture.horizon,
        mixture.num_actions,
        problem.ensemble.size,
        num_states=mixture.graph.num_states,
        **sizes | changes,
    )
    return replace(budget, delta_td=DELTA / mixture.graph.num_states)  # all calls together fail with delta


def value_error(problem: Exact, D_hat: Tensor, budget: Budget) -> float:
    """omega: Hoeffding's bound on all V_hat of one call, with probability 1 - delta_td / 2."""
    greedy = [problem.cells(D_hat, step).amax(-1) for step in range(budget.horizon)]  # [F, B, J] each
    width = max(float((v.amax(-1) - v.amin(-1)).max()) for v in greedy)
    L = math.log(4 * budget.num_members * budget.num_simulators / budget.delta_td)
    return width * math.sqrt(L / (2 * min(budget.n_test, budget.n_train)))


def judging(
    problem: Exact, rule: str, seed: int, *, lipschitz: bool = False, **changes
) -> tuple[Judges, Tensor, float]:
    """Judges with estimated densities and the oracle's b_bar; their theta; phi_D.

    `lipschitz`: phi_D = C_L max |D_hat - D|, as the theory has it; else the true error of f* on the judges' densities.
    """
    root, budget = Seed.root(seed), budget_for(problem, **changes)
    theta = problem.theta(budget.num_simulators, root)
    simulators = problem.guard(theta)
    D_hat = estimate_densities(simulators, problem.mixture.graph, problem.estimator, budget.n_dist, root)
    (group,) = problem.ensemble.groups
    phi_D = group.density_error(D_hat, theta)
    if lipschitz:
        bound = float(group.lipschitz_bound()[problem.f_star] * sup_distance(D_hat, problem.densities(theta)).max())
        assert phi_D <= bound  # Assumption 4
        phi_D = bound
    b_bar = 2 * phi_D + value_error(problem, D_hat, budget)
    budget = replace(budget, b_bar=b_bar, phi=2 * b_bar / 3)
    elimination = Elimination(rule)
    judges = Judges(
        simulators, D_hat, problem.mixture.graph, problem.ensemble, budget, elimination, root.child("judge")
    )
    return judges, theta, phi_D


# -- Theorem Simulators ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2-2-2-full-flat", "3-3-3-chain-flat"])
def test_simulators_generalise_uniformly(name):
    """|mean over B simulators - expectation| <= sqrt(log(2 F / delta) / (2 B)) for the policies of all members."""
    problem, B, trials = exact_problem(name), 40, 60
    members = list(range(0, problem.ensemble.size, 2))
    theta = problem.theta(B * trials, Seed.root(0))
    fine = torch.linspace(-1, 1, 2001, dtype=torch.float64)[:, None]
    best = [exact.optimal(problem.mixture.truth(t))[0][:, 0] for t in (theta, fine)]
    values = best[0] - problem.regrets(problem.densities(theta), theta, members)  # [F, B trials]
    expected = (best[1] - problem.regrets(problem.densities(fine), fine, members)).mean(1)
    worst = (values.unflatten(1, (trials, B)).mean(-1) - expected[:, None]).abs().amax(0)
    radius = math.sqrt(math.log(2 * len(members) / DELTA) / (2 * B))
    check_failure_rate(int((worst > radius).sum()), trials, DELTA)
    assert float(worst.max()) > 0.02  # simulators do differ


# -- Theorem Consensus ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_consensus_gives_the_right_verdict(name):
    """True where the class agrees up to eps_test - phi, False where it disagrees by more than eps_test + phi."""
    mixture = CASES[name]
    problem = Exact(mixture, 1, (1.0, 0.8, 0.5, 0.2, 0.0))
    failures, trials, phi = 0, 15, 0.02
    for seed in range(trials):
        budget = budget_for(problem, num_simulators=3, n_dist=500)
        n = math.ceil(2 * math.log(2 * 5 * 3 / DELTA) / phi**2)
        root = Seed.root(seed)
        theta = problem.theta(3, root)
        D_hat = estimate_densities(problem.guard(theta), mixture.graph, problem.estimator, budget.n_dist, root)
        state = 1 + seed % (mixture.graph.num_states - 1)
        step = int(mixture.graph.layer[state])
        values = problem.values(D_hat, theta, state)
        spread = float((values.amax(0) - values.amin(0)).max())
        true_values = problem.values(problem.densities(theta), theta, state)
        (group,) = problem.ensemble.groups
        phi_D = float(group.lipschitz_bound().max() * sup_distance(D_hat, problem.densities(theta)).max())
        for threshold, verdict in ((spread + 1.1 * phi, True), (max(spread - 1.1 * phi, 1e-9), False)):
            last = threshold - (mixture.horizon - step - 1) * 1e-9
            sizes = {"n_test": n, "epsilon_test_last": last, "epsilon_test_step": 1e-9}
            judges = Judges(
                problem.guard(theta),
                D_hat,
                mixture.graph,
                problem.ensemble,
                replace(budget, **sizes),
                Elimination("sharp"),
                root.child(verdict),
            )
            agrees, knowledge = consensus(state, Knowledge.blank(judges), judges)
            V_hat = knowledge.V_hat[:, :, state]
            right = agrees == verdict or (not verdict and spread < 1.1 * phi)
            close = float((V_hat - values).abs().max()) <= phi / 2
            failures += not (right and close and float((V_hat - true_values).abs().max()) <= phi / 2 + phi_D)
    check_failure_rate(failures, 2 * trials, DELTA)
    assert spread > 1.1 * phi  # so that False is asked for, too


# -- Theorem TD-Eliminate -------------------------------------------------------------------------------------------


def excess_norms(problem: Exact, judges: Judges, theta: Tensor, state: int, V_hat: Tensor) -> Tensor:
    """Exact ||g_f||_2 [F, B]: x as in theta's environments, actions uniform, V_hat as estimated."""
    graph = problem.mixture.graph
    h = problem.cells(judges.D_hat, int(graph.layer[state]))  # [F, B, J, A]
    if int(graph.layer[state]) < graph.horizon - 1:
        h = h - V_hat[:, :, graph.next_state[state]][:, :, None]
    weight = problem.mixture.cell_probabilities(theta)[:, state]  # [B, J]
    g = h - h[problem.f_star]
    return ((g.square().mean(-1) * weight).sum(-1)).sqrt()


def one_sweep(problem: Exact, judges: Judges, theta: Tensor) -> tuple[bool, bool, Knowledge]:
    """Runs TD-Eliminate at every state; whether f* was kept, and whether every call's accuracy held."""
    knowledge, accurate = Knowledge.blank(judges), True
    pooled = judges.elimination.rule == "pooled"
    for step in reversed(range(judges.graph.horizon)):
        for state in judges.graph.states_of(step):
            knowledge = td_eliminate(state, knowledge, judges)
            if not knowledge.alive[problem.f_star]:
                return False, False, knowledge
            norms = excess_norms(problem, judges, theta, state, knowledge.V_hat)[knowledge.alive]
            worst = norms.square().mean(1).sqrt().max() if pooled else norms.max()
            accurate = accurate and float(worst) <= knowledge.history[-1].accuracy
    return True, accurate, knowledge


RULES_BY_CASE = [
    *((SMALLEST, rule) for rule in ("paper", "erratum", "sharp", "pairwise", "pooled", "both")),
    ("2-2-2-full-stacked", "erratum"),
    ("2-2-2-full-stacked", "pairwise"),
    ("3-2-3-full-stacked", "sharp"),
    ("3-3-2-full-flat", "pooled"),
    ("3-3-3-chain-flat", "erratum"),
    ("4-3-4-full-stacked", "sharp"),
]


@pytest.mark.parametrize(("name", "rule"), RULES_BY_CASE)
def test_td_eliminate_keeps_f_star_and_its_accuracy_holds(name, rule):
    problem, lost, broken, trials = exact_problem(name), 0, 0, 20
    for seed in range(trials):
        judges, theta, _ = judging(problem, rule, seed, lipschitz=seed % 2 == 0, n_train=1000)
        kept, accurate, _ = one_sweep(problem, judges, theta)
        lost, broken = lost + (not kept), broken + (not accurate)
    check_failure_rate(lost, trials, DELTA)
    check_failure_rate(broken, trials, DELTA)


@pytest.mark.parametrize("rule", ["sharp", "pairwise", "pooled", "both"])
def test_a_bias_bound_that_does_not_hold_loses_f_star(rule):
    """Power: where densities exaggerate theta and b_bar = 0, a member of half the gain beats f*, and is believed."""
    problem, lost = exact_problem("2-2-2-full-stacked"), 0
    for seed in range(12):
        judges, _, _ = judging(problem, rule, seed, n_train=8000)
        theta = problem.theta(4, Seed.root(seed)) / 2
        budget, wrong = replace(judges.budget, b_bar=0.0), problem.densities(1.8 * theta)
        simulators, settings = problem.guard(theta), Elimination(rule, "best")
        judges = replace(judges, simulators=simulators, D_hat=wrong, budget=budget, elimination=settings)
        lost += not one_sweep(problem, judges, theta)[0]
    with pytest.raises(AssertionError, match="promised 0.1"):
        check_failure_rate(lost, 12, DELTA)


# -- Theorem DFS-Learn ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2-2-2-full-flat", "3-2-3-full-stacked", "3-3-3-chain-flat", "4-3-4-full-stacked"])
def test_dfs_learn_values_the_start(name):
    """f* is kept, and every survivor's value of a learned state is f*'s up to sqrt(A) accuracy + T (theory.md 2.4)."""
    problem, lost, broken, errors, trials = exact_problem(name), 0, 0, [], 12
    graph = problem.mixture.graph
    for seed in range(trials):
        judges, theta, phi_D = judging(problem, "sharp", seed, epsilon_test_step=0.02)
        knowledge = dfs_learn(0, Knowledge.blank(judges), judges)
        alive, f_star = knowledge.alive, problem.f_star
        lost += not alive[f_star]
        good = bool(alive[f_star])
        for call in knowledge.history:
            values = problem.values(judges.D_hat, theta, call.state)
            following = graph.next_state[call.state]
            T = 0.0
            if int(following[0]) >= 0:
                V_hat = knowledge.V_hat[:, :, following]
                T = float((V_hat[alive] - V_hat[f_star]).abs().max())
            bound = math.sqrt(graph.num_actions) * call.accuracy + T
            good = good and float((values[alive] - values[f_star]).abs().max()) <= bound
        V_star = exact.optimal(problem.mixture.truth(theta))[0][:, 0]
        errors.append(float((knowledge.V_hat[knowledge.best(), :, 0] - V_star).mean().abs()))  # Algorithm 1, line 5
        noise = phi_D + value_error(problem, judges.D_hat, judges.budget)
        good = good and float((knowledge.V_hat[f_star, :, 0] - V_star).abs().max()) <= noise
        broken += not good
    check_failure_rate(lost, trials, DELTA)
    check_failure_rate(broken, trials, DELTA)
    assert max(errors) < 0.03  # in practice


# -- Theorem Learn-on-Simulators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2-2-2-full-flat", "2-2-2-full-stacked", "3-2-3-full-stacked", "3-3-3-chain-flat"])
def test_learn_on_simulators_with_flips_that_consensus_cannot_see(name):
    """Flipped members value all states alike, so only the loop finds their errors below the start."""
    mixture = CASES[name]
    problem = Exact(mixture, 48, (1.0,))
    lost, poor, learned, trials = 0, 0, 0, 8
    for seed in range(trials):
        judges, theta, _ = judging(problem, "sharp", seed, num_simulators=8, n_train=3000, n_dist=4000)
        knowledge = dfs_learn(0, Knowledge.blank(judges), judges)
        assert [call.state for call in knowledge.history] == [0]  # Consensus was True everywhere
        root_survivors = int(knowledge.alive.sum())
        V_hat_star = float(knowledge.V_hat[knowledge.best(), :, 0].mean())
        V_star = exact.optimal(mixture.truth(theta))[0][:, 0].mean()
        outcome = learn_on_simulators(knowledge, judges, V_hat_star)
        lost += not outcome.knowledge.alive[problem.f_star]
        learned += outcome.knowledge.learned.sum() > 1
        assert int(outcome.knowledge.alive.sum()) <= root_survivors
        assert len(outcome.rounds) <= mixture.graph.num_states + 1
        # the test passed: the policy earns V_hat* - eps / 2, and both sides are known up to Hoeffding's bound
        episodes = judges.budget.n_rollouts * judges.budget.num_simulators
        slack = math.sqrt(math.log(4 * len(outcome.rounds) / DELTA) / (2 * episodes)) + max(V_star - V_hat_star, 0)
        regret = float(problem.regrets(judges.D_hat, theta, [outcome.member]).mean())
        poor += outcome.stopped != "accepted" or regret > judges.budget.epsilon_demand + slack
    check_failure_rate(lost, trials, DELTA)
    check_failure_rate(poor, trials, DELTA)
    assert learned >= trials // 4  # the loop does run


# -- Theorem R: the sweep -------------------------------------------------------------------------------------------


def loss_bound(judges: Judges, knowledge: Knowledge, phi_D: float, phi_R: float = 0.0) -> float:
    """sum_h Loss_h + 2 H phi_R, by the general form of theory.md 2.5 with every call's own accuracy."""
    A, H, omega = judges.budget.num_actions, judges.budget.horizon, judges.budget.b_bar - 2 * phi_D
    total, T = 0.0, 0.0
    for step in reversed(range(H)):
        R = max(call.accuracy for call in knowledge.history if int(judges.graph.layer[call.state]) == step)
        total += 2 * math.sqrt(A) * R + 2 * phi_D + 2 * T + 2 * phi_R
        T += 2 * math.sqrt(A) * R + 2 * omega
    return total


@pytest.mark.parametrize("name", CASES)
def test_the_worst_survivor_of_the_sweep(name):
    """Within the a-priori bound on every simulator, and in practice within 0.02 on average."""
    problem, lost, broken, worst, trials = exact_problem(name), 0, 0, [], 6
    for seed in range(trials):
        judges, theta, phi_D = judging(problem, "sharp", seed, num_simulators=12, n_train=3000, n_dist=4000)
        knowledge = sweep(judges)
        alive = knowledge.alive.nonzero().flatten().tolist()
        lost += problem.f_star not in alive
        regrets = problem.regrets(judges.D_hat, theta, alive)
        broken += float(regrets.max()) > loss_bound(judges, knowledge, phi_D)
        worst.append(float(regrets.mean(1).max()))
        assert float(regrets[alive.index(knowledge.best())].mean()) < 0.01
    check_failure_rate(lost, trials, DELTA)
    check_failure_rate(broken, trials, DELTA)
    assert max(worst) < 0.02 and len(alive) < problem.ensemble.size / 4


def test_the_sweep_bound_says_something():
    """At 300 000 samples the bound is below 1, holds, and is what `accuracy_of` promises beforehand or less."""
    problem = Exact(CASES[SMALLEST], 4)
    judges, theta, phi_D = judging(
        problem, "pairwise", 0, num_simulators=2, n_train=500_000, n_dist=500_000, n_test=500_000
    )
    kept, accurate, knowledge = one_sweep(problem, judges, theta)
    alive = knowledge.alive.nonzero().flatten().tolist()
    bound = loss_bound(judges, knowledge, phi_D)
    assert kept and accurate and float(problem.regrets(judges.D_hat, theta, alive).max()) <= bound < 0.8
    promised = sum(accuracy_of(judges.budget, reward_width=problem.mixture.spec.reward_width).loss)
    assert bound <= promised


# -- Deploy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2-2-2-full-flat", "2-2-2-full-stacked", "3-3-2-full-flat", "3-3-3-chain-flat"])
@pytest.mark.parametrize("n_real", [300, 2000])
def test_deployed_densities_and_values(name, n_real):
    """The real density is as close as theory.md 3.4 says, and costs at most 2 H phi_R on top of the sweep's losses."""
    problem, delta_real = exact_problem(name), 0.1
    mixture, graph = problem.mixture, problem.mixture.graph
    judges, _, phi_D = judging(problem, "sharp", 0, num_simulators=16, n_train=3000)
    knowledge = sweep(judges)
    alive = knowledge.alive.nonzero().flatten().tolist()
    survivors = problem.ensemble.subset(alive)
    meta = MetaPolicy(survivors, alive.index(knowledge.best()), problem.estimator, path_cover(graph), n_real)
    constants, delta = mixture.constants(), delta_real / graph.num_states
    kernel = problem.estimator.kernel
    radius = explicit_radius(kernel, n_real, BANDWIDTH, holder_constant=constants.C_alpha, delta=delta).total
    phi_R = constants.C_L * radius
    off, dear, gaps, trials = 0, 0, [], 60
    ledger = Ledger()
    thetas = problem.theta(trials, Seed.root(99))
    for w, theta in enumerate(thetas):
        deployed = deploy(meta, mixture.world(theta, Seed.root(w).child("world").generator()), ledger)
        off += float(sup_distance(deployed.D_real, problem.densities(theta[None])[0]).max()) > radius
        truth = mixture.truth(theta[None])
        value = exact.policy_values(truth, lambda step, x, p=deployed.policy: p.act(step, x[0])[None])
        gaps.append(float(exact.optimal(truth)[0][0, 0] - value[0, 0]))
        dear += gaps[-1] > loss_bound(judges, knowledge, phi_D, phi_R)
    check_failure_rate(off, trials, delta_real)
    check_failure_rate(dear, trials, delta_real)
    assert sum(gaps) / trials < 0.02
    assert ledger.counts == {"real": trials * len(meta.cover) * n_real}


def test_a_deployed_f_star_pays_for_the_density_error_alone():
    """V* - V(pi^f*_D') <= 2 H max |f*_D' - f*_D|, whatever D' is: the last link of Theorem R."""
    problem = exact_problem("3-2-3-full-stacked")
    (group,) = problem.ensemble.groups
    theta = problem.theta(200, Seed.root(0))
    for n in (5, 30, 300):
        simulators = problem.guard(theta)
        D = estimate_densities(simulators, problem.mixture.graph, problem.estimator, n, Seed.root(n))
        error = (group.subset([problem.f_star]).theta_hat(D) - theta[:, 0]).abs()
        steepest = float(problem.mixture.constants().C_L) / 4  # C_L is 4 times the slope in theta (theory.md 5.2)
        regret = problem.regrets(D, theta, [problem.f_star])[0]
        assert bool((regret <= 2 * problem.mixture.horizon * steepest * error + 1e-12).all())
        assert float(regret.max()) > 0 or n == 300


# -- Algorithm 1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "rule"), [("sim2real", "erratum"), ("sim2real", "sharp"), ("sweep", "sharp")])
def test_sim2real_from_exploration_to_deployment(method, rule):
    """The states are found, f* is kept, the policy is within 0.02 of V* on fresh worlds, and the seed decides."""
    problem, lost, trials = exact_problem(SMALLEST), 0, 6
    mixture, gaps = problem.mixture, []
    budget = budget_for(problem, num_simulators=10, n_train=4000, n_test=4000)
    for seed in range(trials):
        root = Seed.root(seed)
        theta = problem.theta(10, root)
        bias = lambda D, t=theta: 2 * problem.ensemble.groups[0].density_error(D, t) + value_error(problem, D, budget)  # noqa: E731
        merge = MergeSettings(budget.n_merge, zeta=mixture.spec.zeta)
        trial = Trial(problem.estimator, merge, budget, Elimination(rule), root, bias)
        outcome = method_named(method)(lambda count, t=theta: problem.guard(t[:count]), problem.ensemble, trial)
        lost += not outcome.choice.knowledge.alive[problem.f_star]
        fresh = problem.theta(100, root.child("fresh"))
        D = estimate_densities(problem.guard(fresh), mixture.graph, problem.estimator, 500, root.child("fresh"))
        gaps.append(float(problem.regrets(D, fresh, [outcome.choice.member]).mean()))
    check_failure_rate(lost, trials, DELTA)
    assert max(gaps) < 0.02


def test_the_printed_rule_eliminates_nothing():
    """theory.md F2: at any budget that can be run, the box's threshold exceeds every excess risk there is."""
    problem = exact_problem(SMALLEST)
    judges, theta, _ = judging(problem, "paper", 0, n_train=8000)
    judges = replace(judges, budget=replace(judges.budget, phi=0.05))
    _, _, knowledge = one_sweep(problem, judges, theta)
    assert bool(knowledge.alive.all())
    judges, theta, _ = judging(problem, "sharp", 0, n_train=8000)
    assert int(one_sweep(problem, judges, theta)[2].alive.sum()) < 40
