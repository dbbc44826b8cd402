"""What workers are, and the reference: this process.

>>> list(Serial().map(power, 2, [1, 2, 3]))
[2, 4, 8]
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, overload

from s2r_torch.errors import WorkerError

LOSSES = 3  # deaths of processes at one part before it is the part's own fault
Tell = Callable[[Any], None]
Task = Callable[[Any, Any, Tell], Any]  # (shared, payload, tell) -> result; a function of a module
Item = TypeVar("Item")


def unheard(news: Any) -> None:
    """Nobody listens."""


class Workers(Protocol):
    """Whoever does tasks."""

    cpu_seconds: float  # that tasks took in other processes, so far
    threads: int  # that this process may have while they wait for it (threads.py)

    def map(self, task: Task, shared: Any, payloads: Sequence[Any], hear: Tell = unheard) -> Generator[Any, None, None]:
        """The results of a task for every payload, in their order, each exactly once; closed, the rest is let go.

        Args:
            task: a function of a module, found by its name wherever it is done.
            shared: what all payloads have in common; it travels once, if it travels.
            payloads: each is asked for when it is needed.
            hear: gets whatever the task tells, in order, before its result: at once, or when it is done elsewhere.

        Raises:
            Exception: the first one, in the order of payloads, that a task raised.
            WorkerError: a worker died at the same payload again and again.
        """

    def start(self, task: Task) -> None:
        """Has workers begin before they are needed, each with a task that readies it; waits for none of them.

        Args:
            task: loads libraries, say; it is given None twice, and what comes of it is not looked at.
        """

    def close(self) -> None:
        """Lets the workers go; they come back when they are needed."""


class Serial:
    """This process: the reference that all others agree with to the bit."""

    cpu_seconds, threads = 0.0, 1

    def map(self, task: Task, shared: Any, payloads: Sequence[Any], hear: Tell = unheard) -> Generator[Any, None, None]:
        """See `Workers`; nothing travels, and nothing is copied."""
        return (task(shared, payload, hear) for payload in payloads)

    def start(self, task: Task) -> None:
        """This process loads what it needs when it needs it."""

    def close(self) -> None:
        """Nobody is waiting."""


SERIAL = Serial()


def died(part: int, parts: int) -> WorkerError:
    """A part's process died `LOSSES` times."""
    return WorkerError(
        expected=f"a process that lives to finish part {part} of {parts}",
        got=f"its death, {LOSSES} times",
        cause="a simulator that kills its process (a crash in native code, an exit), or too little memory: fewer "
        "workers",
        part=part,
    )


@dataclass(frozen=True)
class Made(Sequence[Any], Generic[Item]):
    """Payloads that are made when they are asked for, so that not all of them are in memory at once."""

    make: Callable[[Item], Any]
    items: Sequence[Item]

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Made: ...

    def __getitem__(self, index: int | slice) -> Any:
        return Made(self.make, self.items[index]) if isinstance(index, slice) else self.make(self.items[index])


def power(base: int, exponent: int, tell: Tell) -> int:
    """A task to try workers with."""
    return base**exponent
