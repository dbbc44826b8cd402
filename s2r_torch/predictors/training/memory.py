"""What a fit knows beside its networks' weights: its jobs, the values they are fitted to, and what came out so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2r_torch.predictors.training.snapshots import Weights

Parts = dict[str, dict[str, Tensor]]  # named groups of tensors, as in a file


@dataclass(frozen=True)
class Job:
    """One layer to fit."""

    round: int  # 0 fits rewards, 1 and more fit values
    layer: int
    steps: int


@dataclass(eq=False)
class Memory:
    """All that a fit goes on from, but for its networks and the layer in work; it grows as the fit does."""

    jobs: tuple[Job, ...]
    V_hat: Tensor  # [F, B, xi]
    told: Tensor  # [k, 2] steps done, mean risk
    checked: Tensor  # [k, 1 + F] steps done, held-out risks
    finished: int = 0  # jobs
    done: int = 0  # steps of all jobs
    kept: dict[int, list[Weights]] = field(default_factory=dict)  # of every fitted layer, span by span

    @staticmethod
    def blank(jobs: tuple[Job, ...], V_hat: Tensor) -> Memory:
        """Before the first step."""
        return Memory(
            jobs,
            V_hat,
            torch.zeros(0, 2, dtype=torch.float64),
            torch.zeros(0, 1 + len(V_hat), dtype=torch.float64),
        )

    def tell(self, done: int, risk: float) -> None:
        """A step's risk."""
        self.told = torch.cat([self.told, torch.tensor([[done, risk]], dtype=torch.float64)])

    def check(self, done: int, risks: Tensor) -> None:
        """Held-out risks [F] after a step."""
        self.checked = torch.cat([self.checked, torch.cat([risks.new_tensor([done]), risks])[None]])

    # -- rounds ------------------------------------------------------------------------------------------------------

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
        if number < 2:
            return ("values" if number else "rewards"), steps
        layers = ", ".join(str(job.layer) for job in reversed(jobs))
        return f"values again, layer{'s' * (len(jobs) > 1)} {layers}", steps

    # -- to disk and back --------------------------------------------------------------------------------------------

    def parts(self) -> Parts:
        """As named tensors."""
        jobs = torch.tensor([[job.round, job.layer, job.steps] for job in self.jobs], dtype=torch.int64)
        count = torch.tensor([self.finished, self.done])
        spans = ((h, k, weights) for h, kept in self.kept.items() for k, weights in enumerate(kept))
        return {
            "memory": {"jobs": jobs, "count": count, "V_hat": self.V_hat, "told": self.told, "checked": self.checked},
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
            tuple(Job(*row) for row in found["jobs"].tolist()),
            found["V_hat"],
            found["told"],
            found["checked"],
            finished=int(found["count"][0]),
            done=int(found["count"][1]),
            kept={layer: [spans[k] for k in sorted(spans)] for layer, spans in kept.items()},
        )
