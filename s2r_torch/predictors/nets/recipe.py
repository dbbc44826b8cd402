"""What a policy file may say of a network, and what its weights must look like before they take their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from s2r_torch.errors import CheckpointError
from s2r_torch.files.json_schema import (
    Choice,
    Either,
    Integer,
    MapOf,
    Number,
    Record,
    Schema,
    Text,
    Values,
    check,
    like,
)
from s2r_torch.predictors.nets.settings import LARGEST
from s2r_torch.predictors.registry import net_class
from s2r_torch.problem import Problem
from s2r_torch.text import printable

if TYPE_CHECKING:
    from s2r_torch.predictors.nets.net import Net

MOST_MEMBERS, MOST_LAYERS = 2**20, 2**12  # of a group; of a network, all steps together
RECIPE = Record(
    {
        "kind": Choice(("net",)),
        "name": Text(200),
        "members": Integer(1, MOST_MEMBERS),
        "settings": MapOf(Values(1000, 4), 100),
    }
)
SETTINGS: dict[str, Schema] = {
    "lipschitz_bound": Either((Choice(("auto",)), Number(0, 1e12, above=True))),
    "head": Text(200),
    "width": Integer(2, LARGEST),
    "depth": Integer(1, MOST_LAYERS),
    "x_width": Integer(1, LARGEST),
}


def empty_net(recipe: dict, tensors: dict[str, Tensor], problem: Problem) -> Net:
    """The network of a recipe without weights of its own, so that one of another size than the weights costs nothing.

    An option that is younger than the file has its default.

    Raises:
        CheckpointError: a recipe that no network has, or one larger than the weights that are there.
        SettingError: no network of that name, or settings that it cannot have.
    """
    check(RECIPE, recipe, "network")
    kind, members = net_class(recipe["name"]), recipe["members"]
    settings = {**kind.options, **recipe["settings"]}
    known = {name: like(default, LARGEST) for name, default in kind.options.items()}
    check(Record(SETTINGS | known), settings, "network.settings")
    if members > sum(value.numel() for value in tensors.values()):
        raise _unlike(f"{members} members", f"{len(tensors)} tensors of fewer numbers")
    if settings["depth"] * problem.graph.horizon > MOST_LAYERS:
        raise _unlike(f"at most {MOST_LAYERS} layers", f"{problem.graph.horizon} steps of {settings['depth']}")
    with torch.random.fork_rng(devices=[]):  # a user's network may draw from torch's own stream
        return kind(problem, members, None, **settings)


def require_like(net: Net, tensors: dict[str, Tensor]) -> None:
    """Raises CheckpointError unless tensors have the names, types and shapes of a network's, and its fixed numbers."""
    mine = net.state_dict()
    if strange := sorted({*mine} ^ {*tensors}):
        raise _unlike(f"the {len(mine)} tensors of {net.name!r}", f"missing or of another network: {strange[:5]}")
    for name, value in tensors.items():
        if (value.dtype, value.shape) != (mine[name].dtype, mine[name].shape):
            wanted, got = (f"{tensor.dtype} {list(tensor.shape)}" for tensor in (mine[name], value))
            raise _unlike(f"{name} of {wanted}", got)
    for name in net.fixed:
        if not torch.equal(mine[name], tensors[name]):
            raise _unlike(f"{name} as the problem gives it", "other numbers")
    for name in ("height", "spread", "readings"):
        if not bool((tensors[name] > 0).all()):
            raise _unlike(f"{name} above 0", f"{float(tensors[name].min()):g}")


def _unlike(expected: str, got: str) -> CheckpointError:
    return CheckpointError(
        expected=printable(expected), got=printable(got), cause="a file edited by hand, or a network that changed since"
    )
