"""A small honest family written by hand, with places where it can be made to lie.

A lane: place 0 at first, action a adds a, H = 3. x = place + offset + noise of width 0.1 + 0.2 w; theta = (w, offset).
The last action pays Bernoulli(w) at place 0 and Bernoulli(1 - w) at the last place, whatever it is.
"""

from dataclasses import dataclass

import torch

from s2r_torch.base import ProblemSpec
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.function import FunctionFamily
from s2r_torch.families.layered import depth_first
from s2r_torch.families.noise import bernoulli, bump_draws, bump_nodes
from s2r_torch.families.sensors import AffineSensor, uniform_prior

HORIZON, LOW, WIDE, SPREAD = 3, 0.1, 0.2, 0.3


class LaneSimulators:
    """B simulators; subclasses change one step of what they do."""

    def __init__(self, family, theta, ids):
        self.family, self.spec, self.theta, self.ids = family, family.spec, theta, tuple(ids)
        self.generators, self.step_number = (), 0
        self.begin()

    def __len__(self):
        return len(self.theta)

    def reset(self, n, generators):
        self.generators, self.step_number = generators, 0
        self.state = self.moved(torch.zeros(len(self.theta), n, dtype=torch.int64))
        return self.shown(self._read())

    def step(self, actions):
        last = self.step_number == HORIZON - 1
        mean = self.family.pay(self.theta, self.state) * last
        reward = self.paid(bernoulli(mean, self.generators))
        self.step_number += 1
        self.state = None if last else self.moved(self.state + actions)
        return self.answer(None if last else self.shown(self._read()), reward)

    def select(self, indices):
        return type(self)(self.family, self.theta[list(indices)], [self.ids[i] for i in indices])

    def _read(self):
        noise = self.noise(self.state.shape, self.generators)
        return (self.family.centre(self.theta, self.state) + self.family.width(self.theta) * noise)[..., None]

    # what liars change

    def begin(self):
        pass

    def noise(self, shape, generators):
        if self.family.noise == "gaussian":
            return SPREAD * torch.stack([torch.randn(shape[1], generator=g, dtype=torch.float64) for g in generators])
        return bump_draws(shape[1], 2, generators)

    def moved(self, state):
        return state

    def shown(self, x):
        return x

    def paid(self, reward):
        return reward

    def answer(self, x, reward):
        return x, reward


class LaneWorld:
    """One world, from one simulator whose rewards are dropped."""

    def __init__(self, family, theta, generator):
        self.spec, self.shift = family.spec, family.world_shift
        self._inner, self._generators = LaneSimulators(family, theta[None], (0,)), [generator]
        self.begin()

    def begin(self):
        pass

    def reset(self, n):
        return self._inner.reset(n, self._generators)[0] + self.shift

    def step(self, actions):
        return self._inner.step(actions[None])[0][0] + self.shift


@dataclass(eq=False)
class Lane:
    """The family."""

    simulated: type = LaneSimulators
    worlds: type = LaneWorld
    noise: str = "bump"
    truthful: bool = True
    seen: bool = True  # w in the noise
    pays: bool = True  # w in the rewards
    offset: float = 0.6
    spacing: float = 1.0
    blind_at: int = 99  # the sensor does not see beyond this place
    place: float = 0.0
    margin: float = 1.0
    world_shift: float = 0.0
    truth_shift: float = 0.0
    truth_width: float = 1.0
    truth_scale: float = 1.0
    widest: int = HORIZON

    name = "lane"
    theta_names = ("w", "offset")

    def __post_init__(self):
        self.graph, places = depth_first(0, lambda p: [p, p + 1], HORIZON)
        self.places = torch.tensor(places)
        self.spec = ProblemSpec(
            num_actions=2,
            horizon=HORIZON,
            max_states_per_layer=self.widest,
            obs_dim=1,
            low=(self.place - self.margin,),
            high=(self.place + HORIZON - 1 + self.margin + 0.6,),
            obs_names=("x",),
        )

    def prior(self, n, generator):
        return torch.rand(n, 2, generator=generator, dtype=torch.float64)

    def simulators(self, theta, ids):
        return self.simulated(self, theta, ids)

    def world(self, theta, generator):
        return self.worlds(self, theta, generator)

    def truth(self, theta):
        if not self.truthful:
            return None
        nodes, weights = bump_nodes(5, 2)
        if self.noise == "gaussian":
            nodes = nodes * SPREAD / (weights * nodes.square()).sum().sqrt()
        here = self.places.expand(len(theta), -1)
        width = self.truth_width * self.width(theta)[..., None]
        x = self.centre(theta, here)[..., None] + self.truth_shift + width * nodes
        reward = self.truth_scale * self.pay(theta, here) * (self.graph.layer == HORIZON - 1)
        weight = weights.expand(x.shape)
        return GroundTruth(self.graph, x[..., None], weight, reward[..., None, None].expand(*x.shape, 2))

    def parameters(self):
        return {}

    def centre(self, theta, place):
        return self.place + self.spacing * place.clamp(max=self.blind_at) + self.offset * theta[:, 1:]

    def width(self, theta):
        return LOW + WIDE * (theta[:, :1] if self.seen else 0.5 + 0 * theta[:, :1])

    def pay(self, theta, place):
        w = theta[:, :1] if self.pays else 0.7 + 0 * theta[:, :1]
        return w * (place == 0) + (1 - w) * (place == HORIZON - 1)


def random_family(seed):
    """A random honest family: a random layered graph of numbered places, an affine sensor, payoffs by theta."""
    g = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=g))

    A, H, width, d = draw(2, 3), draw(3, 5), draw(2, 4), draw(1, 2)
    table = torch.randint(width, (H, width, A), generator=g).tolist()
    good = torch.rand(H, width, A, generator=g, dtype=torch.float64).tolist()
    spots = torch.randperm(9, generator=g)[:width].tolist()  # where places are, on a 3 x 3 board or a line
    paying = [h for h in range(H) if draw(0, 1)] or [H - 1]

    def step(theta, state, action):
        h, place, *_ = state
        chance = theta.w if good[h][place][action] > 0.5 else 1 - theta.w
        following = table[h][place][action]
        return seat(h + 1, following), chance * good[h][place][action] / len(paying) if h in paying else 0.0

    def seat(h, place):
        return (h, place, *((spots[place],) if d == 1 else divmod(spots[place], 3)))

    low = 0.1 + 0.1 * float(torch.rand((), generator=g))
    return FunctionFamily(
        name="random",
        step=step,
        start=seat(0, 0),
        num_actions=A,
        theta_names=("w", "a", "b"),
        prior=uniform_prior((0.0, 1.0), (-1.0, 1.0), (0.8, 1.2)),
        sensor=AffineSensor(
            tuple("xy"[:d]),
            columns=(2, 3)[:d],
            offset=lambda theta: theta[:, 1],
            gain=lambda theta: theta[:, 2],
            rotation=(lambda theta: theta[:, 1]) if d == 2 and draw(0, 1) else 0.0,
            width=lambda theta: low + 0.2 * theta[:, 0],
            noise=("bump", "gaussian")[draw(0, 1)],
            smoothness=draw(1, 3),
        ),
        horizon=H,
    )
