r"""The finite class of the mixture family: f* and its sign flips and gains (theory.md 5.2), a ready-made F.

    theta_hat(D) = clip(mean over s of sum_j sign(v_sj) (integral over cell j of D[s] - u_sj) / |v_s|_1)
    f(D, x, a)   = q_h(gain theta_hat(D), j(x), a) with c[h, j, a] replaced by flip[h, j] c[h, j, a]

A linear functional of all densities, so f is defined and Lipschitz also for signed estimates; what every state says of
theta counts alike. Flipped members have the same greedy values everywhere: Consensus never sees them, the Bellman risk
does. Gain 0 is blind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor

from s2r_torch.arrays import check_shape
from s2r_torch.errors import CheckpointError, SettingError
from s2r_torch.families import make_family
from s2r_torch.files.json_schema import Choice, ListOf, MapOf, Number, Record, Text, Values, check, like
from s2r_torch.problem import Problem

if TYPE_CHECKING:
    from s2r_torch.families.mixture.family import Mixture

GAINS = (1.0, 0.5, 0.0)
MAX_BITS = 16  # all flips of at most 2^16 patterns
MOST = 2**12  # signs of a member, and any parameter of the family, in a policy file
RECIPE = Record(
    {
        "kind": Choice(("mixture",)),
        "mixture": MapOf(Values(1, 0), 20),
        "flips": ListOf(Text(MOST, least=1, letters="01"), most=2**20, least=1),
        "gains": ListOf(Number(0, 1), most=2**20, least=1),
    }
)


class Quadrature(Protocol):
    """A density grid: sum(weights * D) is the integral of D."""

    @property
    def nodes(self) -> Tensor:
        """[G, 1]."""

    @property
    def weights(self) -> Tensor:
        """[G]."""


class MixturePredictors:
    """Members of the class (`base.PredictorGroup`), float64.

    Args:
        mixture: the family.
        grid: the density grid.
        flips: `[size, H, J]` signs +-1 of every member.
        gains: `[size]` in [0, 1].

    Raises:
        SettingError: sizes disagree, or the grid does not cover the cells.
    """

    def __init__(self, mixture: Mixture, grid: Quadrature, flips: Tensor, gains: Tensor):
        self.mixture, self.grid = mixture, grid
        self.flips = torch.as_tensor(flips, dtype=torch.float64)  # [size, H, J]
        self.gains = torch.as_tensor(gains, dtype=torch.float64)  # [size]
        self.size = len(self.gains)
        wanted = (self.size, mixture.horizon, mixture.num_cells)
        if self.size < 1 or tuple(self.flips.shape) != wanted:
            raise SettingError(
                expected=f"flips of shape {wanted}", got=str(tuple(self.flips.shape)), cause="another H, J"
            )
        self._functional, self._offset = _theta_functional(mixture, grid)  # [xi, G], number

    @staticmethod
    def build(
        mixture: Mixture,
        grid: Quadrature,
        flips: str | int = "all",
        gains: Sequence[float] = GAINS,
        seed: int = 0,
    ) -> MixturePredictors:
        """The class of all sign flips times gains; index 0 is f* when the first gain is 1.

        Args:
            mixture: the family.
            grid: the density grid.
            flips: "all" 2^(H J) patterns, or how many: the identity and others drawn without repetition.
            gains: factors of theta_hat; the first should be 1.
            seed: which patterns are drawn.
        """
        bits = mixture.horizon * mixture.num_cells
        if flips == "all" and bits > MAX_BITS:
            raise SettingError(expected=f"flips=<number>, since H J = {bits}", got="'all'", cause=f"2^{bits} members")
        count = 2**bits if flips == "all" else int(flips)
        if not 1 <= count <= 2 ** min(bits, MAX_BITS):
            raise SettingError(
                expected=f"1 <= flips <= {2 ** min(bits, MAX_BITS)}", got=str(flips), cause="H J is small, or memory"
            )
        patterns = _patterns(bits, count, seed).reshape(count, mixture.horizon, mixture.num_cells)
        flips_of, gain_of = (
            patterns.repeat(len(gains), 1, 1),
            torch.tensor(list(gains), dtype=torch.float64).repeat_interleave(count),
        )
        return MixturePredictors(mixture, grid, flips_of, gain_of)

    @staticmethod
    def from_recipe(recipe: dict, tensors: dict[str, Tensor], problem: Problem) -> MixturePredictors:
        """Rebuilds the members of `recipe()`; they have no tensors.

        Raises:
            CheckpointError: a recipe that no class has, or one of another problem.
        """
        known = make_family("mixture").parameters()
        check(RECIPE, recipe, "class")
        check(Record({name: like(value, MOST) for name, value in known.items()}), recipe["mixture"], "class.mixture")
        spec, parameters = problem.spec, recipe["mixture"]
        sizes = (parameters["horizon"], parameters["num_actions"], parameters["max_states"], 1)
        if tensors or sizes != (spec.horizon, spec.num_actions, spec.max_states_per_layer, spec.obs_dim):
            raise _unlike("a mixture of the problem's sizes, without tensors", f"{sizes}, {len(tensors)} tensors")
        mixture = cast("Mixture", make_family("mixture", **parameters))
        flips, gains = recipe["flips"], recipe["gains"]
        shape = (len(flips), mixture.horizon, mixture.num_cells)
        if {len(member) for member in flips} != {shape[1] * shape[2]} or len(gains) != len(flips):
            raise _unlike(f"{shape[1] * shape[2]} signs and one gain per member", f"others, {len(gains)} gains")
        signs = 1.0 - 2.0 * torch.tensor([[int(bit) for bit in member] for member in flips], dtype=torch.float64)
        return MixturePredictors(mixture, problem.grid, signs.reshape(shape), torch.tensor(gains, dtype=torch.float64))

    def recipe(self) -> dict:
        """JSON values that rebuild these members; flips as strings of 0 (kept) and 1 (flipped)."""
        flips = ["".join("1" if sign < 0 else "0" for sign in member) for member in self.flips.flatten(1).tolist()]
        return {"kind": "mixture", "mixture": self.mixture.parameters(), "flips": flips, "gains": self.gains.tolist()}

    def tensors(self) -> dict[str, Tensor]:
        """None: the recipe says it all."""
        return {}

    def theta_hat(self, D: Tensor) -> Tensor:
        """The estimate [B] of theta from densities D [B, xi, G]: a linear functional, clipped."""
        check_shape("densities", D, (None, *self._functional.shape), "densities on another grid, or other states")
        return (D.double().flatten(1) @ self._functional.flatten() - self._offset).clamp(-1.0, 1.0)

    def density_error(self, D: Tensor, theta: Tensor) -> float:
        """An oracle's phi_D: max |f*(D_b, x, a) - Q*(theta_b, x, a)| over simulators b with true theta [B, 1]."""
        difference = self.mixture.q_table(self.theta_hat(D)) - self.mixture.q_table(theta[:, 0])
        return float(difference.abs().max())

    def condition(self, D: Tensor, readings: float | None = None) -> Tensor:
        """gain theta_hat [size, B], which is all that a member takes from D."""
        return self.gains[:, None] * self.theta_hat(D)

    def q(self, conditioned: Tensor, step: int, x: Tensor) -> Tensor:
        """f(D, x, a) [size, B, n, A] for x [B, n, 1]."""
        mixture, j = self.mixture, self.mixture.cell(x)
        flipped = conditioned[..., None] * self.flips[:, step][:, j]  # [size, B, n]
        gap = (mixture.amplitudes[:, None] * mixture.signs[step])[j]  # [B, n, A]
        level = mixture.level(step, conditioned)[..., None, None]
        return level + mixture.unit / 2 * flipped[..., None] * gap

    def subset(self, members: Sequence[int]) -> MixturePredictors:
        """The group of these members only."""
        return MixturePredictors(self.mixture, self.grid, self.flips[list(members)], self.gains[list(members)])

    def lipschitz_bound(self) -> Tensor:
        """[size]: gain times the slope of q_h in theta_hat times the l1 norm of the functional over grid nodes."""
        steepest = self.mixture.unit / 2 * (self.mixture.amplitudes.max() + self.mixture.ahead.max())
        return self.gains * steepest * self._functional.abs().sum()


def _unlike(expected: str, got: str) -> CheckpointError:
    return CheckpointError(expected=expected, got=got, cause="a file edited by hand, or a damaged recipe")


def _theta_functional(mixture: Mixture, grid: Quadrature) -> tuple[Tensor, float]:
    """The weights [xi, G] and offset of theta_hat = weights . D - offset; a node on a common edge is split evenly."""
    nodes = grid.nodes[:, 0].double()
    if float(nodes.min()) > 0.0 or float(nodes.max()) < mixture.num_cells:
        raise SettingError(
            expected=f"a density grid that covers [0, {mixture.num_cells}]",
            got=f"[{float(nodes.min()):g}, {float(nodes.max()):g}]",
            cause="a grid of another family",
        )
    u, v = mixture.offsets[mixture.labels], mixture.slopes[mixture.labels]  # [xi, J]
    left = torch.arange(mixture.num_cells, dtype=torch.float64)[:, None]
    closed, open_ = (left <= nodes) & (nodes <= left + 1), (left < nodes) & (nodes < left + 1)
    inside = (closed.double() + open_.double()) / 2  # [J, G]
    sign = v.sign() / v.abs().sum(1, keepdim=True) / len(v)
    return (sign @ inside) * grid.weights.double(), float((sign * u).sum())


def _patterns(bits: int, count: int, seed: int) -> Tensor:
    """`[count, bits]` different sign patterns, the first all +1."""
    if count == 2**bits:
        codes = torch.arange(count)
        return 1.0 - 2.0 * ((codes[:, None] >> torch.arange(bits)) & 1).double()
    generator = torch.Generator().manual_seed(seed)
    chosen = {(0,) * bits: None}
    while len(chosen) < count:
        for row in torch.randint(2, (count, bits), generator=generator).tolist():
            if len(chosen) < count:
                chosen.setdefault(tuple(row))
    return 1.0 - 2.0 * torch.tensor(list(chosen), dtype=torch.float64)
