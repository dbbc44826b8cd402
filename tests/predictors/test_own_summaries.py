"""Networks of one's own beside their modules: summaries without parameters, settings of their own, densities kept."""

import numpy as np
import pytest
import torch
from support.attacks import bumps, make_net, problem, readings
from support.registries import as_before
from torch import nn

from s2r_torch.density.patches import takes_patches
from s2r_torch.errors import SettingError
from s2r_torch.predictors.nets.free import FreeNet
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.registry import NETS, register

WHERE = problem("line")


@pytest.fixture(autouse=True)
def registries():
    with as_before(NETS):
        yield


def peaks(self, D):
    return D.amax(-1)


def net_of(summary=peaks, base=Net, settings=None, **parts):
    kind = type("Own", (base,), {"summary": summary, "__module__": __name__} | parts)
    register("own")(kind)
    return make_net("own", WHERE, **(settings or {}))


def linear(self, inputs, outputs):
    return nn.Linear(inputs, outputs)


def gain(self):
    self.gain = nn.Parameter(torch.ones(()))


def layer(self):
    self.layer = nn.Linear(self.problem.graph.num_states, 2)
    self.layer.weight.data.div_(100)


WRONG = {
    "a learned factor": (
        {"summary": lambda s, D: s.gain * D.amax(-1), "setup": gain},
        "summary without parameters",
    ),
    "a learned layer": (
        {"summary": lambda s, D: s.layer(D.amax(-1)), "setup": layer},
        "summary without parameters",
    ),
    "other statistics of patches": (
        {"summary": takes_patches(lambda s, D: (D if isinstance(D, torch.Tensor) else 2 * D.values).amax(-1))},
        "the same statistics of patches as of all nodes from Own.summary",
    ),
    "no embedding": ({"make_embedding": lambda self, g: nn.Linear(3, 3)}, "make_embedding of net 'own': an Embedding"),
    "a bound below 0": (
        {"default_bound": -1.0, "settings": {"lipschitz_bound": None}},
        "a number > 0",
    ),
    "a bound in words": ({"default_bound": "ten", "settings": {"lipschitz_bound": None}}, "lipschitz_bound: a number"),
    "no depth": ({"default_depth": 0}, "depth: a whole number in"),
    "options in a list": ({"options": ["ranks"]}, "options of net own: a dict of names and defaults; got list"),
    "no settings": (
        {"__init__": lambda self, problem, members, generator: None},
        r"__init__\(self, problem, members, generator, \*\*settings\) of Own; got",
    ),
    "noise, without a certificate": (
        {
            "base": FreeNet,
            "summary": lambda s, D: D.amax(-1) + torch.rand(()),
            "module": lambda s, i, o: nn.Linear(i, o),
        },
        "the same statistics for the same densities from Own.summary",
    ),
    "others' means, without a certificate": (
        {
            "base": FreeNet,
            "summary": lambda s, D: D.amax(-1) - D.amax(-1).mean(0),
            "module": lambda s, i, o: nn.Linear(i, o),
        },
        "statistics of every simulator by itself from Own.summary",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_with_a_network_is_one_error_when_it_is_made(kind):
    parts, words = WRONG[kind]
    with pytest.raises(SettingError, match=words):
        net_of(**parts)


def test_sums_are_a_summary_where_nothing_is_certified():
    assert not net_of(lambda s, D: D.sum(-1), FreeNet, module=linear).certified


def test_a_summary_may_write_into_what_it_is_given():
    def cut(self, D):
        D.clamp_(max=0.3)
        return D.amax(-1)

    net, pure = net_of(cut), net_of(lambda self, D: D.clamp(max=0.3).amax(-1))
    pure.load_state_dict(net.state_dict())
    D = bumps(WHERE, 2, torch.Generator().manual_seed(0)).float()
    kept, x = D.clone(), readings(WHERE, (2, 7), torch.Generator().manual_seed(1))
    q = net.q(net.condition(D), 1, x)
    assert torch.equal(D, kept) and torch.equal(q, pure.q(pure.condition(D), 1, x))


def test_options_are_each_network_s_own():
    one, other = (net_of(options={"ranks": [1, 2], "names": {"a": 1}}) for _ in range(2))
    one.options["ranks"].append(3)
    one.options["names"]["b"] = 2
    assert other.options == {"ranks": [1, 2], "names": {"a": 1}} == make_net("own", WHERE).options
    assert make_net("own", WHERE, ranks=(4, 5)).options["ranks"] == [4, 5]


def test_sizes_of_numpy_are_sizes():
    assert net_of(settings={"width": np.int64(8)}).width == 8
    for bound in (np.float32(3), torch.tensor(3.0)):
        assert make_net("own", WHERE, width=torch.tensor(8), lipschitz_bound=bound).declared_bound == 3.0
