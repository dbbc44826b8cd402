"""What a fit knows beside its networks' weights: its jobs, the values they are fitted to, and what came out so far."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field

import torch
from torch import Tensor

from s2r_torch.predictors.training.snapshots import Weights

Parts = dict[str, dict[str, Tensor]]  # named groups of tensors, as in a file


@dataclass(frozen=True)
class Job:
    """One layer to fit."""

    round: int  # counted from 0
    layer: int
    steps: int
    values: bool  # or rewards, which come first


@dataclass(eq=False)
class Memory:
    """All that a fit goes on from, but for its networks and the layer in work; it grows as the fit does."""

    V_hat: Tensor  # [F, R, xi]
    loosened: Tensor  # [2] how often networks of rewards, and of values, were made anew with a larger C_L
    missed: Tensor  # [2, H] what rewards and values of a layer missed when they were last looked at
    walked: Tensor  # [R, xi] how often the best policy by Q_hat comes to a state, members together
    told: Tensor  # [k, 2] steps done, mean risk
    checked: Tensor  # [k, 1 + F] steps done, held-out risks
    jobs: tuple[Job, ...] = ()
    ends: tuple[int, ...] = ()  # steps done after every finished job
    kept: dict[int, list[Weights]] = field(default_factory=dict)  # of every fitted layer, span by span

    @staticmethod
    def blank(V_hat: Tensor, horizon: int) -> Memory:
        """Before the first step."""
        return Memory(
            V_hat,
            torch.zeros(2, dtype=torch.int64),
            torch.full((2, horizon), math.inf, dtype=torch.float64),
            torch.zeros_like(V_hat[0]),
            torch.zeros(0, 2, dtype=torch.float64),
            torch.zeros(0, 1 + len(V_hat), dtype=torch.float64),
        )

    @property
    def finished(self) -> int:
        """Jobs."""
        return len(self.ends)

    @property
    def done(self) -> int:
        """Steps of all finished jobs."""
        return self.ends[-1] if self.ends else 0

    def tell(self, done: int, risk: float) -> None:
        """A step's risk."""
        self.told = torch.cat([self.told, torch.tensor([[done, risk]], dtype=torch.float64)])

    def check(self, done: int, risks: Tensor) -> None:
        """Held-out risks [F] after a step."""
        self.checked = torch.cat([self.checked, torch.cat([risks.new_tensor([done]), risks])[None]])

    # -- rounds ------------------------------------------------------------------------------------------------------

    def rounds(self, values: bool) -> int:
        """How many rounds of values, or of rewards, are planned so far."""
        return len({job.round for job in self.jobs if job.values == values})

    def last(self, values: bool) -> list[int]:
        """The layers of the last one."""
        some = [job for job in self.jobs if job.values == values]
        return [job.layer for job in some if job.round == some[-1].round]

    def plan(self, layers: list[int], steps: int, values: bool) -> None:
        """Adds a round of these layers: twice as many steps as the one of its kind before it."""
        number, steps = self.rounds(False) + self.rounds(True), steps * 2 ** self.rounds(values)
        self.jobs += tuple(Job(number, h, steps, values) for h in layers)

    def begins_round(self) -> bool:
        """Whether the next job is the first one of its round."""
        return self.finished == 0 or self.jobs[self.finished - 1].round < self.jobs[self.finished].round

    def rounds_begun(self) -> range:
        """Those that were told before a fit was stopped."""
        return range(self.jobs[self.finished - 1].round + 1) if self.finished else range(0)

    def described(self, number: int) -> tuple[str, int]:
        """What a round fits, and its steps at most."""
        jobs = [job for job in self.jobs if job.round == number]
        steps = sum(job.steps for job in jobs)
        what = "values" if jobs[0].values else "rewards"
        if not any(job.values == jobs[0].values for job in self.jobs if job.round < number):
            return what, steps
        layers = ", ".join(str(job.layer) for job in reversed(jobs))
        return f"{what} again, layer{'s' * (len(jobs) > 1)} {layers}", steps

    # -- to disk and back --------------------------------------------------------------------------------------------

    def parts(self) -> Parts:
        """As named tensors."""
        jobs = torch.tensor([list(astuple(job)) for job in self.jobs], dtype=torch.int64)
        spans = ((h, k, weights) for h, kept in self.kept.items() for k, weights in enumerate(kept))
        return {
            "memory": {
                "jobs": jobs,
                "ends": torch.tensor(self.ends, dtype=torch.int64),
                "V_hat": self.V_hat,
                "loosened": self.loosened,
                "missed": self.missed,
                "walked": self.walked,
                "told": self.told,
                "checked": self.checked,
            },
            "kept": {f"{h}.{k}.{name}": value for h, k, weights in spans for name, value in weights.items()},
        }

    @staticmethod
    def of(parts: Parts) -> Memory:
        """What `parts` gave."""
        found = parts["memory"]
        kept: dict[int, dict[int, Weights]] = {}
        for place, value in parts.get("kept", {}).items():
            layer, span, name = place.split(".", 2)
            spans = kept.setdefault(int(layer), {})
            spans.setdefault(int(span), {})[name] = value
        return Memory(
            found["V_hat"],
            found["loosened"],
            found["missed"],
            found["walked"],
            found["told"],
            found["checked"],
            jobs=tuple(Job(k, h, steps, bool(v)) for k, h, steps, v in found["jobs"].tolist()),
            ends=tuple(found["ends"].tolist()),
            kept={layer: [spans[k] for k in sorted(spans)] for layer, spans in kept.items()},
        )
