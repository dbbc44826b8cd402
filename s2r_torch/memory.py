"""How much memory there is: densities may ask for more, and an error before hours of work beats a killed process; and
work in parts that fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from s2r_torch.errors import SettingError

MACHINE, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")  # Linux; elsewhere nobody is asked


def require_memory(size: int, what: str, cause: str) -> None:
    """Refuses what does not fit.

    Args:
        size: bytes that are about to be filled.
        what: that they are for.
        cause: what makes them so many, and what to set.

    Raises:
        SettingError: there is less.
    """
    free = available_memory()
    if free is not None and size > free:
        raise SettingError(
            expected=f"{size / 2**30:.3g} GiB of memory for {what}", got=f"{free / 2**30:.3g} GiB free", cause=cause
        )


def available_memory() -> int | None:
    """Bytes that can be filled without swapping, by the machine and the container's limit; None where neither says."""
    told = (_of_machine(), _of_group())
    return min((free for free in told if free is not None), default=None)


def _of_machine() -> int | None:
    kibibytes = _numbers(MACHINE).get("MemAvailable:")
    return None if kibibytes is None else kibibytes * 1024


def _of_group() -> int | None:
    """What a control group still allows: cached files give way."""
    try:
        most, used = (int((GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no group, or "max": no limit
        return None
    return most - used + _numbers(GROUP / "memory.stat").get("file", 0)


def _numbers(path: Path) -> dict[str, int]:
    """The lines `name number ...` of a file; none where there is no file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {name: int(value) for name, value, *_ in (line for line in lines if len(line) > 1) if value.isdigit()}


def slices(count: int, width: int) -> Iterator[slice]:
    """Consecutive slices of 0 .. count of at most `width`, at least 1, each; one empty slice of nothing."""
    for start in range(0, max(1, count), max(1, width)):
        yield slice(start, min(start + max(1, width), count))
