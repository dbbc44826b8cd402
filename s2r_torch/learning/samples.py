"""What Consensus and TD-Eliminate look at: samples at the states of a known graph, and whose episodes they are.

    Shared      one batch of episodes along tours serves all states (`tours.py`); what runs take
    Separate    every sample has an episode of its own, as in the paper and in what is compared with it

Where decisions are shared, their readings serve Consensus, too: what a member says of a state is one number then, a
function of the readings at that state alone. TD-Eliminate judges a state by the values of its successors, so by
readings of other states, whoever asked first and whatever they decided (theory.md 2.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from s2r_torch.episodes import Guard, Transitions, observe, try_actions
from s2r_torch.graph import StateGraph
from s2r_torch.learning import drawing
from s2r_torch.rng import Seed


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples at every state, drawn when they are first asked for.

    Args:
        simulators: B of them.
        graph: their state graph.
        n_test: readings of a state for Consensus.
        n_train: decisions at a state for TD-Eliminate.
        seed: named stream.
    """

    simulators: Guard
    graph: StateGraph
    n_test: int
    n_train: int
    seed: Seed

    def readings(self, state: int) -> Tensor:
        """x [B, n_test or more, d]; asked again, the same."""
        raise NotImplementedError

    def decisions(self, state: int) -> Transitions:
        """n_train decisions with their rewards; asked again, the same."""
        raise NotImplementedError


class Shared(Samples):
    """Drawn once, for all states; readings are those of the decisions, where these are as many."""

    @cached_property
    def _readings(self) -> list[Tensor]:
        return drawing.readings(self.simulators, self.graph, self.n_test, self.seed.child("test"))

    @cached_property
    def _decisions(self) -> list[Transitions]:
        return drawing.decisions(self.simulators, self.graph, self.n_train, self.seed.child("train"))

    def readings(self, state: int) -> Tensor:
        return self.decisions(state).x if self.n_test <= self.n_train else self._readings[state]

    def decisions(self, state: int) -> Transitions:
        return self._decisions[state]


class Separate(Samples):
    """Drawn for a state when it is asked about, one episode each (Algorithms 4 and 5); every time anew."""

    def readings(self, state: int) -> Tensor:
        return observe(self.simulators, self.graph.paths[state], self.n_test, self.seed.child("test", state))

    def decisions(self, state: int) -> Transitions:
        return try_actions(self.simulators, self.graph.paths[state], self.n_train, self.seed.child("train", state))
