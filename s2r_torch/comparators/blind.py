"""The best policy that sees no density: what densities are worth is what ours earns beyond it.

Two candidates: the policy of step and reading that policy search finds on the training draws (`policy_search`), and the
best fixed list of actions, which such a policy need not beat. The better one on simulators of the run is it.
"""

from __future__ import annotations

from dataclasses import dataclass

from s2r_torch.comparators.contract import Access, Attempt, Drawn, Known, Worlds, register_comparator
from s2r_torch.comparators.open_loop import best_action_list
from s2r_torch.comparators.policies import follow
from s2r_torch.comparators.policy_search import GridPolicy, PolicySearch
from s2r_torch.episodes import Act, rollout
from s2r_torch.graph import Path
from s2r_torch.schema import Settings, Size


@dataclass(frozen=True, eq=False)
class BlindPolicy:
    """A policy that sees x and the step alone, or a list of actions that earns as much."""

    policy: GridPolicy
    actions: Path | None = None  # [H]; None where the policy earns more

    @property
    def act(self) -> Act:
        """The same in every world."""
        return self.policy.act if self.actions is None else follow(self.actions)

    def attempt(self, worlds: Worlds) -> Attempt:
        """No real episodes."""
        if self.actions is None:
            return Attempt(self.act)
        return Attempt(self.act, note=f"the best fixed list earns as much: actions {' '.join(map(str, self.actions))}")


@register_comparator("blind")
@dataclass(frozen=True)
class Blind(Settings):
    """Policy search over policies of step and reading, or the best fixed list if that earns as much.

    Args:
        sweeps: of the search (`policy_search`).
        simulators: of the calibration, on which the better one of both is picked.
        n: episodes per simulator and candidate.

    Raises:
        SettingError: a size below 1.
    """

    sweeps: Size = 3
    simulators: Size = 32
    n: Size = 250

    label = "best without densities"
    access = Access(simulators="yes, with reward", graph="discovered there", predictors="policies of x, lists")
    learner = BlindPolicy

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        """Both candidates, on the same simulators."""
        return (Drawn("calibrate", self.simulators, rollouts=2 * self.n),)

    def fit(self, known: Known) -> BlindPolicy:
        """Cost: 2 n rollouts in every one of its simulators; the search uses the training transitions."""
        problem, samples = known.problem, known.data.samples
        policy = PolicySearch(problem.graph, samples, problem.grid).best(self.sweeps)
        actions, seed = best_action_list(problem.graph, samples), known.seed.child("calibrate", "candidates")
        simulators = known.draws.simulators("calibrate", self.simulators)
        earned = [float(rollout(simulators, act, self.n, seed).returns.mean()) for act in (policy.act, follow(actions))]
        return BlindPolicy(policy, None if earned[0] > earned[1] else actions)
