"""What this process does itself, in as many threads as it has workers, which would wait meanwhile.

    for result in in_threads(task, items): ...      # those of map(task, items), in order

torch lets other Python run while it computes, so threads pay where single steps take long; what they share need not
travel. Results are the same to the bit: an item is done as it would be alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_POOL: ContextVar[tuple[ThreadPoolExecutor, int] | None] = ContextVar("threads of this process", default=None)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Has `in_threads` of this thread do so many items at once inside."""
    if count == 1:
        yield
        return
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)) as pool:
        before = _POOL.set((pool, count))
        try:
            yield
        finally:
            _POOL.reset(before)


def in_threads(task: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results of a task for every item, in order; without `threads` around it, one after another.

    Args:
        task: waits for no other item's, and holds no code of users, who may not think of threads.
        items: each is asked for when a thread will soon be free.

    Raises:
        Exception: the first one, in the order of items, that the task raised.
    """
    pool = _POOL.get()
    if pool is None:
        yield from map(task, items)
        return
    waiting: deque[Future[Result]] = deque()
    with_gradients = torch.is_grad_enabled()  # each thread has a mode of its own

    def apart(item: Item) -> Result:
        with torch.set_grad_enabled(with_gradients):
            return task(item)

    try:
        for item in items:
            waiting.append(pool[0].submit(apart, item))
            if len(waiting) > pool[1]:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
