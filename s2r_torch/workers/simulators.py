"""Simulators in parts, which workers take on: what a part finds comes back in order, its episodes are counted once.

    D_hat = torch.cat(map_simulators(densities_of, in_parts(simulators), graph, estimator))

Parts are of `AT_ONCE` simulators whatever the number of workers, and every stream of a simulator is a function of its
own id: so the bits are the same wherever a part is done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from s2r_torch.episodes import Guard, Ledger
from s2r_torch.errors import SimulatorError, WorkerError
from s2r_torch.workers.engines import Tell

AT_ONCE = 16  # simulators of a part: few enough that 64 workers have some of 1000, enough that batches pay


def in_parts(simulators: Guard, *each: Any) -> list[tuple]:
    """Payloads (simulators, rows of every tensor) for `map_simulators`, some simulators each, in order.

    Args:
        simulators: B of them.
        each: tensors `[B, ...]`, or densities.
    """
    cuts = [range(start, min(start + AT_ONCE, len(simulators))) for start in range(0, len(simulators), AT_ONCE)]
    return [(simulators.select(rows), *(tensor[rows.start : rows.stop] for tensor in each)) for rows in cuts]


def map_simulators(task: Callable[..., Any], payloads: Sequence[tuple], *shared: Any) -> list:
    """[task(simulators, *others, *shared) for (simulators, *others) in payloads], by the workers of these simulators.

    Args:
        task: a function of a module.
        payloads: each begins with simulators; all of them have the same workers and ledger.
        shared: further arguments.

    Raises:
        SimulatorError: a simulator failed, or kills its process; its name is in the message. Nothing is left out.
    """
    return list(each_simulators(task, payloads, *shared))


def each_simulators(task: Callable[..., Any], payloads: Sequence[tuple], *shared: Any) -> Generator[Any, None, None]:
    """What `map_simulators` lists, one result after another; whoever wants no more of them closes it."""
    first = payloads[0][0]
    with closing(first.workers.map(_on_part, (task, shared), payloads)) as done:
        try:
            for result, ledger in done:
                first.ledger.include(ledger)
                yield result
        except WorkerError as error:
            failed = payloads[error.part][0]
            raise SimulatorError(
                expected=error.expected, got=f"{error.got}, in one of {failed.named}", cause=error.cause
            ) from error


def _on_part(common: tuple, payload: tuple, tell: Tell) -> tuple[Any, Ledger]:
    """What a task finds on one part, and what it drew."""
    (task, shared), (simulators, *others) = common, payload
    apart = simulators.apart()
    return task(apart, *others, *shared), apart.ledger
