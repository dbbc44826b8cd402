"""Networks and ready-made classes by name, for configurations and policy files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from s2r_torch.registry import Registry

_SHIPPED = {
    "lookup": "LookupNet",
    "sets": "SetsNet",
    "conv": "ConvNet",
    "linear": "LinearNet",
    "mlp": "MLPNet",
    "charfun": "CharFunNet",
    "cones": "ConesNet",
    "blind": "BlindNet",
}
NETS = Registry("network", {k: f"s2r_torch.predictors.nets.architectures:{v}" for k, v in _SHIPPED.items()}, "Net")
register, net_class = NETS.register, NETS.named

# What a policy file may hold: anything with `recipe()`, `tensors()` and `from_recipe(recipe, tensors, problem)`.
GROUPS = Registry(
    "kind of predictor",
    {
        "net": "s2r_torch.predictors.nets.net:Net",
        "mixture": "s2r_torch.families.mixture.predictors:MixturePredictors",
    },
    parts=("from_recipe", "recipe", "tensors", "condition", "q", "subset", "lipschitz_bound"),
)
register_group, group_class = GROUPS.register, GROUPS.named


def variants(settings: Mapping) -> list[dict]:
    """Every combination of the values that are given as lists, each a network of its own.

    >>> variants({"lipschitz_bound": [5.0, 20.0], "depth": 2})
    [{'lipschitz_bound': 5.0, 'depth': 2}, {'lipschitz_bound': 20.0, 'depth': 2}]
    """
    choices = [value if isinstance(value, list | tuple) else [value] for value in settings.values()]
    return [dict(zip(settings, combination, strict=True)) for combination in itertools.product(*choices)]
