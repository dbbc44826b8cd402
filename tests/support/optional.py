"""What only extras bring: tests of it are skipped where they are not installed."""

import pytest

PACKAGES = {
    "treasure": "mo_gymnasium",
    "minigrid": "minigrid",
    "minigrid_images": "minigrid",
    "digits": "sklearn",
    "pendulum": "mujoco",
}


def needs(family: str) -> None:
    """Skips a test of a family whose package is not installed."""
    if family in PACKAGES:
        pytest.importorskip(PACKAGES[family], exc_type=ImportError)
