"""Numbers of other libraries as Python's own."""

import numpy as np
import pytest
import torch

from s2r_torch.plain import as_python


class Own(np.ndarray):
    """An array of somebody's."""


class Lists:
    """Not an array, though it lists itself."""

    def tolist(self):
        return [1]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (torch.tensor(4), 4),
        (np.array([1, 2]), [1, 2]),
        (np.array([7]).view(Own), [7]),
        (torch.nn.Parameter(torch.ones(2)), [1.0, 1.0]),
        ((1, 2), (1, 2)),
        ("text", "text"),
        (None, None),
    ],
)
def test_arrays_and_their_numbers_become_plain(value, plain):
    found = as_python(value)
    assert found == plain and type(found) is type(plain)


@pytest.mark.parametrize("value", [Lists(), np, torch, np.ndarray, torch.Tensor, torch.float32, np.float64])
def test_nothing_else_does(value):
    assert as_python(value) is value
