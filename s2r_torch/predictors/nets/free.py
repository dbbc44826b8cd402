"""Networks without a certificate: any `nn.Module` of a user's, stacked and evaluated by vmap. The reference path.

    @register("mine")
    class Mine(FreeNet):
        def module(self, inputs, outputs):
            return nn.Sequential(nn.Linear(inputs, 64), nn.GELU(), nn.Linear(64, outputs))

It gets the statistics of `lookup`, the densities looked up at x, and x. Its Lipschitz bound is infinite, and the class
is marked (`Ensemble.certified`): no guarantee that uses Assumption 4 holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from s2r_torch.defaults import plain_torch
from s2r_torch.errors import SettingError
from s2r_torch.predictors.nets.architectures import LookupNet
from s2r_torch.predictors.nets.steps import Constants, Sizes, Step


class FreeNet(LookupNet):
    """Base of users' networks without a certificate; give it `module`."""

    certified = False

    def module(self, inputs: int, outputs: int) -> nn.Module:
        """One member's network of one step, freshly initialised: [..., inputs] -> [..., outputs], row by row."""
        raise NotImplementedError

    def make_step(self, states: int, generator: torch.Generator) -> Step:
        inputs = self.summary_size + states + self.problem.spec.obs_dim
        sizes = self.sizes(self.summary_size, states)
        with torch.random.fork_rng(devices=[]), plain_torch():  # modules draw their weights from the global generator
            torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
            return FreeStep([self.module(inputs, sizes.num_actions) for _ in range(self.size)], sizes)


@dataclass(frozen=True, eq=False)
class PreparedFree:
    """One step's modules for given D."""

    summary: Tensor  # [B, K]
    weights: dict[str, Tensor]  # every parameter, stacked

    def part(self, members: slice, simulators: slice) -> PreparedFree:
        """For these members and simulators."""
        return PreparedFree(self.summary[simulators], {k: w[members] for k, w in self.weights.items()})


class FreeStep(Step):
    """Stacked copies of a module, evaluated by vmap.

    Args:
        modules: one per member, alike but for their weights.
        sizes: see `Sizes`.

    Raises:
        SettingError: the module has buffers, or nothing to train.
    """

    def __init__(self, modules: list[nn.Module], sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        weights, buffers = torch.func.stack_module_state(modules)
        if buffers or not weights:
            raise SettingError(
                expected="a module with parameters and without buffers",
                got=f"{len(weights)} parameters, buffers {sorted(buffers)}",
                cause="batch statistics would let simulators and samples see each other",
            )
        self.weights = nn.ParameterDict({_key(k): nn.Parameter(w.detach().clone()) for k, w in weights.items()})
        self._names = {_key(k): k for k in weights}
        self._module = [modules[0].to("meta")]  # in a list: not a submodule, its own weights are not used

    def prepare(self, summary: Tensor, constants: Constants) -> PreparedFree:
        return PreparedFree(summary, dict(self.weights.items()))

    def values(self, prepared: PreparedFree, columns: Tensor, n: int) -> Tensor:
        rows = torch.cat([prepared.summary.repeat_interleave(n, 0), columns[:-1].T], -1)  # [m, inputs]

        def one(weights: dict[str, Tensor]) -> Tensor:
            named = {self._names[k]: w for k, w in weights.items()}
            return torch.func.functional_call(self._module[0], named, (rows,))

        return torch.func.vmap(one)(prepared.weights).mT

    def lipschitz_bound(self, constants: Constants) -> Tensor:
        return torch.full((self.sizes.members,), torch.inf, dtype=torch.float64)


def _key(name: str) -> str:
    """Parameter names without dots, as `nn.ParameterDict` wants them."""
    return name.replace(".", "/")
