"""A family from deterministic dynamics, a sensor and a payoff: theta decides what is sensed and what pays.

`GymFamily`, `FunctionFamily` and `BatchedFamily` differ in where the dynamics come from. Every episode has H layers:
one that ends early stays where it is, keeps emitting readings, and pays nothing. Simulators replay every action path
once and draw readings in batch; the episodes count all the same. A world steps every episode for real.

Starts are fixed. A start that is drawn, even from a few that are seen, is refused: nobody chooses it in reality, so the
same actions would lead to different states, the reading after a path would have no law of its own, and no action could
be credited with what it pays. Where a start can be chosen, let the first action choose it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from s2r_torch.base import CUT_FINE, EVERY_TICK, MOST_ACTIONS, MOST_STEPS, ProblemSpec
from s2r_torch.defaults import plainly
from s2r_torch.episodes import require_generator
from s2r_torch.errors import RewardError, S2RError, SettingError
from s2r_torch.families.contract import GroundTruth, names_of, users
from s2r_torch.families.layered import require_one, require_theta
from s2r_torch.families.noise import bernoulli
from s2r_torch.families.replay.determinism import Dynamics, Trust
from s2r_torch.families.replay.proposals import (
    LONGEST,
    largest_totals,
    most_payments,
    propose_box,
    propose_horizon,
    propose_scale,
)
from s2r_torch.families.replay.simulators import Moves, ReplaySimulators, RewardModel, SteppedWorld, own_reward
from s2r_torch.families.replay.tree import Episode, ReplayTree, merged_graph
from s2r_torch.families.sensors import Sensor, readings_of, require_sensor
from s2r_torch.given import taking
from s2r_torch.graph import StateGraph
from s2r_torch.held import untouched
from s2r_torch.plain import real_numbers, require_count
from s2r_torch.registry import require_name
from s2r_torch.rng import Seed, kept_globals

Prior = Callable[[int, torch.Generator], Tensor]  # n -> theta [n, k], float64

SURVEYED, PAYING = 16, 256  # theta that proposals look at; and what pays, where they share the dynamics
BOX_THETA, BOX_DRAWS = 1024, 4  # theta, and readings of every state, that a box is proposed from
BOX_NUMBERS = 256  # of readings under every theta, at least: tails of a few states


@dataclass(frozen=True)
class Payoff:
    """What moves pay.

    Args:
        model: theta and moves -> mean rewards; a finished episode always gets 0.
        bernoulli: pay scale * Bernoulli(mean / scale) instead of the mean itself; None does so where only one step of
            an episode can pay, since the total could exceed 1 otherwise.
        scale: raw rewards are divided by it; None takes 1, or more than the largest total if that is not in 1/2 .. 1.
    """

    model: RewardModel = own_reward
    bernoulli: bool | None = None
    scale: float | None = None


@plainly("prior", "simulators", "world", "truth")
class ReplayFamily:
    """A family (`contract.Family`) that replays deterministic dynamics.

    Args:
        name: what the family is called; an identifier.
        prior: draws theta [n, k].
        theta_names: what the k numbers are.
        sensor: theta and latent numbers -> reading.
        dynamics: what actions lead to.
        payoff: what moves pay.
        horizon: H; None takes the number of steps after which every episode has ended.
        max_states_per_layer: S, an upper bound; None counts the states.
        settings: keyword arguments (JSON values) that rebuild this family.

    Attributes:
        proposed: what was taken from simulation, name -> text, because nothing was given.

    Raises:
        SettingError: the dynamics cannot be used, or nothing can be proposed; the message says why.
    """

    def __init__(
        self,
        *,
        name: str,
        prior: Prior,
        theta_names: Sequence[str],
        sensor: Sensor,
        dynamics: Dynamics,
        payoff: Payoff,
        horizon: int | None = None,
        max_states_per_layer: int | None = None,
        settings: dict | None = None,
    ):
        self.name, self.sensor, self.theta_names = require_name(name, "family"), sensor, names_of(theta_names)
        require_sensor(sensor)
        if horizon is not None:
            horizon = require_count("horizon", horizon, MOST_STEPS, EVERY_TICK)
        self.dynamics, self.payoff = dynamics, payoff
        self.proposed: dict[str, str] = {}
        self._prior, self._settings = prior, copy.deepcopy(dict(settings or {}))
        actions, limit = dynamics.sizes(self._first_theta, horizon)
        self.num_actions = require_count("num_actions", actions, MOST_ACTIONS, CUT_FINE)
        self.horizon = self._propose_horizon(limit) if horizon is None else horizon
        scale, self.bernoulli_rewards = self._payment()
        low, high = self._box()
        self.spec = ProblemSpec(
            num_actions=self.num_actions,
            horizon=self.horizon,
            max_states_per_layer=self._propose_states() if max_states_per_layer is None else max_states_per_layer,
            obs_dim=len(sensor.names),
            low=low,
            high=high,
            obs_names=tuple(sensor.names),
            reward_scale=scale,
        )

    @taking()
    def prior(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws theta [n, k]; consumes the generator."""
        require_count("n", n, least=0)
        with users("a draw from the prior"):
            theta = self._prior(n, generator)
        theta = require_theta(theta, self.theta_names)
        if len(theta) != n:
            cause = "a sample of fixed size, or points that ran out"
            raise SettingError(expected=f"{n} rows from the prior, as asked", got=str(len(theta)), cause=cause)
        return theta

    def simulators(self, theta: Tensor, ids: Sequence[int]) -> ReplaySimulators:
        """Simulators that replay; the determinism that this needs is checked first.

        Raises:
            SimulatorError: dynamics or starts are random, or depend on theta although they are said to be shared.
        """
        theta = require_theta(theta, self.theta_names)
        self._check_dynamics(theta)
        if self.dynamics.shared:
            return ReplaySimulators(self, theta, ids, self._tree, torch.zeros(len(theta), dtype=torch.int64))
        return ReplaySimulators(self, theta, ids, self._tree_of(theta, self.horizon), torch.arange(len(theta)))

    def trust(self, theta: Tensor) -> None:
        """Relies on the dynamics of theta [B, k], which were checked where these come from (`recipe.py`)."""
        self._trust.include(require_theta(theta, self.theta_names))

    def world(self, theta: Tensor, generator: torch.Generator) -> SteppedWorld:
        """A world whose environments are stepped."""
        return SteppedWorld(self, require_one(theta, self.theta_names), require_generator(generator))

    def truth(self, theta: Tensor) -> GroundTruth | None:
        """The ground truth of shared dynamics and a sensor that has `quadrature`, else None.

        Raises:
            GraphMismatchError: latent numbers do not identify the states of a layer.
        """
        if not (self.dynamics.shared and hasattr(self.sensor, "quadrature")):
            return None
        theta = require_theta(theta, self.theta_names)
        self._check_dynamics(theta)
        graph, nodes = self._merged
        with users("the sensor's quadrature"):
            points = self.sensor.quadrature(theta, self._tree.latent(nodes))
            x, weight = (torch.as_tensor(part, dtype=torch.float64) for part in points)
        expected = (len(theta), graph.num_states), len(self.sensor.names)
        if x.ndim != 4 or (x.shape[:2], x.shape[3]) != expected or weight.shape != x.shape[:3]:
            raise SettingError(
                expected=f"points [{len(theta)}, {graph.num_states}, m, {expected[1]}] and their weights [.., m] from "
                "the sensor's quadrature",
                got=f"shapes {list(x.shape)} and {list(weight.shape)}",
                cause="an axis left out: theta [B, k], latent [xi, l] -> x [B, xi, m, d], weights [B, xi, m]",
            )
        reward = self._rewards(self._tree, theta, graph, nodes)[:, :, None] / self.spec.reward_scale
        return GroundTruth(graph, x, weight, reward.expand(*weight.shape, self.num_actions))

    def known_graph(self) -> StateGraph | None:
        """The state graph of shared dynamics, merged by latent numbers."""
        return self._merged[0] if self.dynamics.shared else None

    def mean_rewards(self, theta: Tensor) -> Tensor:
        """Mean rewards [B, xi, A] of `known_graph`, in units of total reward."""
        return self._rewards(self._tree, require_theta(theta, self.theta_names), *self._merged) / self.spec.reward_scale

    def ended_states(self) -> Tensor:
        """Which states [xi] of `known_graph` are those of an episode that has ended."""
        return self._tree.ended(self._merged[1])

    def parameters(self) -> dict:
        """Keyword arguments that rebuild this family."""
        return copy.deepcopy(self._settings)

    def episode(self, theta: Tensor) -> Episode:
        """A new environment of theta [k], to be stepped for real."""
        return self.dynamics.episode(theta, self.horizon)

    def moves(self, tree: ReplayTree, theta: Tensor, nodes: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The next nodes [B, n] and mean rewards [B, n] of actions; 0 where the episode has ended."""
        following, moves = self._moves(tree, nodes, actions)
        mean = torch.where(tree.ended(nodes), 0.0, self._mean(theta, moves))
        top = self.spec.reward_scale if self.bernoulli_rewards else float("inf")
        fine = (mean >= 0) & (mean <= top)
        if not bool(fine.all()):
            bad = mean[~fine]
            vector = bool(torch.isnan(bad[0])) and bool(torch.isnan(moves.raw).any())
            raise RewardError(
                expected=f"mean rewards in [0, {top:g}]",
                got=f"{float(bad[0]):g}",
                cause="the environment's own rewards are vectors, or none: let the reward model not use them"
                if vector
                else f"a scale taken from simulation, where no theta paid as much: give reward_scale={1.2 * bad[0]:.3g}"
                if "reward_scale" in self.proposed and bad[0] > 0
                else "rewards are not scaled, or costs below 0 (shift or drop them; give a reward model)",
            )
        return following, mean

    def read(self, theta: Tensor, latent: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """What the sensor reads, x [B, n, d], at latent [B, n, l] under theta [B, k]."""
        with untouched(f"a sensor of {self.name}", theta):
            return readings_of(self.sensor, theta, latent, generators)

    def pay(self, mean: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """What is paid [B, n] where these are the mean rewards; row b consumes generator b, if it is random."""
        if not self.bernoulli_rewards:
            return mean
        return bernoulli(mean / self.spec.reward_scale, generators) * self.spec.reward_scale

    def close(self) -> None:
        """Closes the environments that replays keep open; they are opened again when needed."""
        if "_tree" in self.__dict__:
            self._tree.close()

    # -- replays ------------------------------------------------------------------------------------------------------

    @cached_property
    def _first_theta(self) -> Tensor:
        return self.prior(1, torch.Generator().manual_seed(0))[0]

    @cached_property
    def _tree(self) -> ReplayTree:
        """What happens along action paths, for all theta; used only where dynamics are shared."""
        return self._tree_of(self._first_theta[None], self.horizon)

    def _tree_of(self, theta: Tensor, horizon: int) -> ReplayTree:
        """A tree with one root per row of theta."""
        openers = [lambda row=row: self.dynamics.episode(row, horizon) for row in theta]
        return ReplayTree(openers, self.num_actions)

    @cached_property
    def _merged(self) -> tuple[StateGraph, Tensor]:
        return merged_graph(self._tree, self.horizon)

    def _moves(self, tree: ReplayTree, nodes: Tensor, actions: Tensor) -> tuple[Tensor, Moves]:
        following, raw = tree.step(nodes, actions)
        return following, Moves(tree.latent(nodes), actions, tree.latent(following), raw, tree.place(nodes))

    def _rewards(self, tree: ReplayTree, theta: Tensor, graph: StateGraph, nodes: Tensor) -> Tensor:
        """Mean rewards [B, xi, A] of the states at nodes [xi]."""
        xi, A = graph.next_state.shape
        at = nodes.repeat_interleave(A).expand(len(theta), xi * A)
        _, moves = self._moves(tree, at, torch.arange(A).repeat(xi).expand(len(theta), xi * A))
        return torch.where(tree.ended(at), 0.0, self._mean(theta, moves)).reshape(len(theta), xi, A)

    def _mean(self, theta: Tensor, moves: Moves) -> Tensor:
        """Mean rewards [B, n] of moves, as the model says."""
        with users("the reward model"):
            mean = torch.as_tensor(self.payoff.model(theta, moves), dtype=torch.float64)
        if mean.shape != moves.actions.shape:
            raise RewardError(
                expected=f"mean rewards of shape {list(moves.actions.shape)}, as actions, from the reward model",
                got=str(list(mean.shape)),
                cause="theta[:, 0] in place of theta[:, :1], or a missing axis",
            )
        return mean

    @cached_property
    def _pays_raw(self) -> bool:
        """Whether what is paid depends on the environment's own rewards: without them the model knows no number."""
        nodes = torch.zeros(1, self.num_actions, dtype=torch.int64)
        seen = []
        for step in range(self.horizon):
            following, moves = self._moves(self._tree, nodes, torch.arange(self.num_actions)[None])
            unpaid = Moves(moves.latent, moves.actions, moves.following, moves.raw * float("nan"), moves.place)
            seen.append(self._mean(self._first_theta[None], unpaid))
            nodes = following[:, step % self.num_actions, None].expand_as(nodes)
        return bool(torch.isnan(torch.stack(seen)).any())

    @cached_property
    def _trust(self) -> Trust:
        return Trust(self.dynamics, self._first_theta, self.num_actions, self.horizon)

    def _check_dynamics(self, theta: Tensor) -> None:
        """Runs paths again before they are replayed; SimulatorError where something differs."""
        with kept_globals():
            seeded = self._trust.require(theta, rewards=self.dynamics.shared and self._pays_raw)
        self.proposed |= {"reset_seed": seeded} if seeded else {}

    # -- what simulation says where the user says nothing -------------------------------------------------------------

    def _surveyed(self) -> list[tuple[StateGraph, Tensor]]:
        """Graphs, and mean rewards [B, xi, A], for some theta."""
        theta = self.prior(PAYING if self.dynamics.shared else SURVEYED, torch.Generator().manual_seed(0))
        if self.dynamics.shared:
            graph, nodes = self._merged
            return [(graph, self._rewards(self._tree, theta, graph, nodes))]
        tree, found = self._tree_of(theta, self.horizon), []
        for root, row in enumerate(theta):
            graph, nodes = merged_graph(tree, self.horizon, root)
            found.append((graph, self._rewards(tree, row[None], graph, nodes)))
        tree.close()
        return found

    def _latent_numbers(self) -> Tensor:
        """Of all states [n, l], each as often as a box asks for; where theta changes the dynamics, of some theta's."""
        if self.dynamics.shared:
            latent = self._tree.latent(self._merged[1])
            return latent.repeat(max(BOX_DRAWS, BOX_NUMBERS // (len(latent) * len(self.sensor.names))), 1)
        tree = self._tree_of(self.prior(SURVEYED, torch.Generator().manual_seed(0)), self.horizon)
        found = [tree.latent(merged_graph(tree, self.horizon, root)[1]) for root in range(SURVEYED)]
        tree.close()
        return torch.cat(found).repeat(-(-BOX_DRAWS // SURVEYED), 1)

    def _propose_horizon(self, limit: int | None) -> int:
        tree = self._tree_of(self._first_theta[None], limit or LONGEST)
        horizon = propose_horizon(tree, limit)
        tree.close()
        why = "the time limit of the environment" if horizon == limit else "every episode has ended by then"
        self.proposed["horizon"] = f"{horizon}: {why}"
        return horizon

    def _propose_states(self) -> int:
        states = max(max(graph.states_per_layer) for graph, _ in self._surveyed())
        self.proposed["max_states_per_layer"] = f"{states}: counted on action paths"
        return states

    def _payment(self) -> tuple[float, bool]:
        """The scale of rewards, and whether they are paid at random."""
        scale, random = self.payoff.scale, self.payoff.bernoulli
        if scale is not None and random is not None:
            return scale, random
        try:
            surveyed = self._surveyed()
            totals = torch.cat([largest_totals(graph, reward) for graph, reward in surveyed])
            payments = max(most_payments(graph, reward) for graph, reward in surveyed)
        except S2RError:  # what is wrong is said where it matters, by `simulators`
            return scale or 1.0, random is not False
        if random is None:
            random = payments <= 1
            how = "at most one step of an episode pays" if random else f"up to {payments} steps of an episode pay"
            self.proposed["bernoulli_rewards"] = f"{random}: {how}"
        if scale is None:
            scale = propose_scale(totals)
            if scale != 1:
                self.proposed["reward_scale"] = f"{scale:.6g}: an episode pays up to {totals.max():.4g}, and a margin"
        return scale, random

    def _box(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The box of readings."""
        if self.sensor.low is not None and self.sensor.high is not None:
            return real_numbers("low", self.sensor.low), real_numbers("high", self.sensor.high)
        theta = self.prior(BOX_THETA, torch.Generator().manual_seed(0))
        generators = Seed.root(0).child("box").generators(range(len(theta)))
        latent = self._latent_numbers()
        with users("the sensor"):
            low, high = propose_box(self.sensor, theta, latent, generators)
        shown = ", ".join(
            f"{n} in {lo:.4g} .. {hi:.4g}" for n, lo, hi in zip(self.sensor.names, low, high, strict=True)
        )
        self.proposed["box"] = f"{shown}: readings of {len(theta)} theta, and a margin"
        return low, high
