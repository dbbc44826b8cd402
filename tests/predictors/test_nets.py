"""Contract of every network: shapes, ranges, round trips, gradients, and a Lipschitz bound that survives attacks."""

import pytest
import torch
from support.attacks import PROBLEMS, attack, bumps, densities, make_net, names, problem, quotients, readings, slopes

from s2r_torch.density.patches import Patches, centres
from s2r_torch.episodes import Transitions
from s2r_torch.errors import CheckpointError, LipschitzError, ObservationError, SettingError
from s2r_torch.predictors.nets import architectures, heads, lipschitz, steps
from s2r_torch.predictors.nets.embeddings import agreement, places_between
from s2r_torch.predictors.nets.learned_embeddings import SetEmbedding
from s2r_torch.predictors.nets.lipschitz import StackedLinear
from s2r_torch.predictors.registry import net_class
from s2r_torch.predictors.training.data import TrainingData

EVERY = pytest.mark.parametrize("name", names())
SEEING = [name for name in names() if name != "blind"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=PROBLEMS)
def where(request):
    return problem(request.param)


def values(net, D, x):
    conditioned = net.condition(D)
    return torch.cat([net.q(conditioned, step, x) for step in range(net.problem.graph.horizon)], -1)


@EVERY
def test_values_have_their_shape_and_lie_in_the_unit_interval(name, where):
    net, g = make_net(name, where, members=3, loud=30.0), seeded()
    D = densities(where, 1, g)
    x = readings(where, (len(D), 7), g, margin=0.5)
    conditioned = net.condition(D)
    for step in range(where.graph.horizon):
        q = net.q(conditioned, step, x)
        assert q.shape == (3, len(D), 7, where.spec.num_actions)
        assert bool(((q >= 0) & (q <= 1)).all())
        assert not q.requires_grad
    assert float(q.std()) > 0.05


@EVERY
def test_members_and_simulators_do_not_see_each_other(name, where):
    net, g = make_net(name, where, members=3, loud=3.0), seeded()
    D, x = bumps(where, 4, g), readings(where, (4, 5), g)
    q = values(net, D, x)
    assert float((q[0] - q[1]).abs().max()) > 1e-3
    for f, b in ((0, 3), (2, 1)):
        alone = values(net.subset([f]), D[b : b + 1], x[b : b + 1, 2:4])
        torch.testing.assert_close(alone[0, 0], q[f, b, 2:4], atol=2e-6, rtol=0)


def small_bumps(where, batch, generator):
    """Densities that are 0 in all but a box of a third of the nodes along every axis."""
    D = bumps(where, batch, generator).unflatten(-1, where.grid.shape)
    for j, n in enumerate(where.grid.shape):
        D.narrow(2 + j, 0, n // 3).zero_()
        D.narrow(2 + j, 2 * n // 3, n - 2 * n // 3).zero_()
    return D.flatten(2)


@EVERY
def test_patches_of_densities_tell_the_same(name, where):
    """Scales, summaries and values, whether a network takes patches or is given all nodes."""
    net, other, g = *(make_net(name, where, members=3, loud=3.0) for _ in range(2)), seeded()
    D, x = small_bumps(where, 6, g), readings(where, (6, 40), g)
    for each, given in ((net, D), (other, Patches.of(D, where.grid))):
        each.fit_scales(given)
        each.fit_readings({64.0: given, 4.0: given})
    torch.testing.assert_close(other.state_dict(), net.state_dict())
    conditioned = net.condition(D), other.condition(Patches.of(D, where.grid))
    for step in range(where.graph.horizon):
        wanted = net.q(conditioned[0], step, x)
        torch.testing.assert_close(other.q(conditioned[1], step, x), wanted, rtol=0, atol=2e-5)
    assert name.startswith("blind") or float(wanted.std()) > 1e-3


def test_a_summary_of_one_s_own_is_given_all_nodes():
    """Whatever the network that it replaces takes."""
    seen = []

    class Own(net_class("lookup")):
        def summary(self, D):
            seen.append(type(D))
            return super().summary(D)

    where = problem("line")
    D = Patches.of(small_bumps(where, 2, seeded()), where.grid)
    Own(where, 1, seeded()).summaries(D)
    assert D.small and set(seen) == {torch.Tensor}


@EVERY
def test_round_trips(name, where):
    """The same values to the bit from a subset of all, from stacked weights, and from a state dict."""
    net, g = make_net(name, where, members=3, loud=3.0), seeded()
    D, x = bumps(where, 3, g), readings(where, (3, 6), g)
    q = values(net, D, x)
    loaded = type(net)(where, 3, seeded(9), **net.settings())
    assert not torch.equal(values(loaded, D, x), q)
    loaded.load_state_dict(net.state_dict())
    for same in (net.subset([0, 1, 2]), net.with_members(net.stacked()), loaded):
        assert torch.equal(values(same, D, x), q)
        assert torch.equal(same.lipschitz_bound(), net.lipschitz_bound())
        assert same.settings() == net.settings() and same.name == net.name
    swapped = net.subset([2, 0])
    torch.testing.assert_close(values(swapped, D, x), q[[2, 0]], atol=2e-6, rtol=0)
    assert torch.equal(swapped.lipschitz_bound(), net.lipschitz_bound()[[2, 0]])
    assert not any(p.requires_grad for p in swapped.parameters())


def test_a_file_older_than_an_option_has_its_default():
    net = make_net("lookup", problem(2))
    recipe = net.recipe()
    for option in ("profiles", "positions", "places"):
        recipe["settings"].pop(option)
    assert "places" not in net.tensors()  # nor is it in such a file
    again = type(net).from_recipe(recipe, net.tensors(), net.problem)
    assert again.settings() == net.settings()
    recipe["settings"].pop("width")
    with pytest.raises(CheckpointError, match=r"network.settings.width"):
        type(net).from_recipe(recipe, net.tensors(), net.problem)


@EVERY
def test_gradient_reaches_every_parameter(name, where):
    net, g = make_net(name, where, members=2), seeded()
    D, x = bumps(where, 12, g).float(), readings(where, (12, 30), g)
    total = 0
    for step in range(where.graph.horizon):
        q = net.raw_q(step, net.standardised(D), net.local(D, step, x), x, torch.rand(12, generator=g))
        total = total + (q * torch.randn(q.shape, generator=g)).sum()
    total.backward()
    for parameter, value in net.named_parameters():
        assert value.grad is not None, parameter
        assert bool(torch.isfinite(value.grad).all()), parameter
        if value.numel():
            per_member = value.grad.reshape(2, -1).abs().amax(1)
            assert float(per_member.min()) > 0, parameter


@EVERY
def test_a_network_is_told_how_many_readings_there_are(name, where):
    """By the noise that they leave, cut at what training saw; None means the most; cones do not listen."""
    net, g = make_net(name, where, members=2, loud=3.0), seeded()
    levels = {n: bumps(where, 5, g) for n in (64.0, 16.0, 4.0)}
    net.fit_readings(levels)
    for readings_seen, expected in ((None, 0.0), (64, 0.0), (1000, 0.0), (16, 1 / 3), (4, 1.0), (1, 1.0)):
        assert float(net.scarcity(readings_seen)) == pytest.approx(expected, abs=1e-6)
    D, x, steps = bumps(where, 2, g), readings(where, (2, 40), g), range(where.graph.horizon)

    def told(readings_seen):
        return torch.cat([net.q(net.condition(D, readings_seen), step, x) for step in steps])

    most, few = told(None), told(4)
    assert torch.equal(most, told(64)) and torch.equal(few, told(1))
    assert torch.equal(most, few) == name.startswith("cones")
    net.fit_readings({9.0: levels[64.0]})  # training saw one number only: nothing is known of others
    assert torch.equal(told(3), most)


@EVERY
@pytest.mark.parametrize("loud", [1.0, 50.0])
def test_the_certified_bound_survives_attack(name, where, loud):
    """Random pairs, steepest ascent, adversarial, signed and off-distribution densities; free layers are loud too."""
    net, g = make_net(name, where, members=2, loud=loud).requires_grad_(False), seeded(1)
    bound = net.certify()
    assert bound.dtype == torch.float64 and float(bound.max()) <= 4.0 * (1 + 1e-6)
    found = attack(net, g)
    assert bool((found <= bound * (1 + 1e-6)).all()), (found, bound)
    if name == "blind":
        assert float(bound.max()) == 0.0
    else:  # the attack is not blunt
        assert float((found / bound).max()) > 0.01
    D = densities(where, 4, g)
    x = readings(where, (len(D), 1), g)
    pairs = torch.randperm(len(D), generator=g)
    for step in range(where.graph.horizon):
        assert bool((quotients(net.double(), step, D, D[pairs], x).amax((1, 2)) <= bound * (1 + 1e-6)).all())


@pytest.mark.parametrize("where", ["line", "single"])
@pytest.mark.parametrize("feature", [0, -1])  # the first statistic of D, and a density looked up at x
@pytest.mark.parametrize("name", SEEING)
def test_the_bound_is_attained(name, feature, where):
    """With every weight positive and one input used, a shift of the densities moves f by C_L times the shift."""
    where = problem(where)
    net = make_net(name, where, members=2, depth=3)
    aligned(net, feature)
    bound, g = net.certify(), seeded(2)
    D = bumps(where, 24, g)
    x = readings(where, (24, 1), g)
    found = torch.stack([slopes(net, step, D, x)[0].amax((1, 2)) for step in range(where.graph.horizon)]).amax(0)
    assert bool((found > 0.97 * bound).all()), (found, bound)
    assert bool((found <= bound * (1 + 1e-5)).all())
    assert float(bound.min()) > 0.999 * net.declared_bound


@torch.no_grad()
def aligned(net, feature):
    """Positive weights everywhere; of the first layer's inputs only one counts, and of a set's statistics too."""
    for layer in net.modules():
        weight = getattr(layer, "weight", None)
        if weight is not None and getattr(layer, "bound", 1.0) is not None:
            weight.fill_(10.0)
    for step in net.steps:
        if isinstance(step, steps.LayeredStep):
            step.first.weight.zero_()
            step.first.weight[..., feature] = 1e6
        if isinstance(step, heads.SignedHead | heads.FiLMHead):
            step.branch.outer.weight.zero_()
            step.branch.outer.bias.fill_(10.0)
        if isinstance(getattr(step, "embedding", None), SetEmbedding):
            step.embedding.each.layers[0].weight[..., 1:] = 0.0


@EVERY
def test_loud_weights_are_tamed_and_damage_is_noticed(name, monkeypatch):
    where = problem("line")
    net = make_net(name, where)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter *= 1e3
    assert float(net.certify().max()) <= 4.0 * (1 + 1e-6)  # normalised in forward: scaling cannot break the bound
    if not isinstance(net.steps[0], steps.LayeredStep) or name == "blind":
        return
    with monkeypatch.context() as patch:  # the certificate measures weights, it does not trust their construction
        for module in (lipschitz, steps):
            patch.setattr(module, "normalise_rows", lambda weight, *a, **k: weight, raising=False)
        with pytest.raises(LipschitzError, match="at most 4"):
            net.certify()
    for layer in (net.steps[1].first, *net.steps[0].later()):
        freed = net.subset([0, 1, 2])
        layer = freed.get_submodule(next(k for k, m in net.named_modules() if m is layer))
        layer.bound = None
        with pytest.raises(LipschitzError):
            freed.certify()
    for key, layer in net.named_modules():
        if ".embedding" in key and hasattr(layer, "effective"):
            with monkeypatch.context() as patch:
                patch.setattr(layer, "effective", lambda constants=None, layer=layer: layer.weight)
                with pytest.raises(LipschitzError):
                    net.certify()
    for damage in (torch.nan, torch.inf):
        hurt = net.subset([0, 1, 2])
        hurt.steps[0].first.weight[1, 0, 0] = damage
        with pytest.raises(LipschitzError, match="finite|damaged"):
            hurt.certify()


@pytest.mark.parametrize("name", SEEING)
@pytest.mark.parametrize("buffer", ["spread", "height"])
@pytest.mark.parametrize("value", [-0.1, 0.0, torch.nan])
def test_damaged_scales_are_noticed_or_harmless(name, buffer, value):
    """A negative scale must not turn normalisation off, and the certificate with it."""
    net = make_net(name, problem("line"), loud=100.0)
    getattr(net, buffer).fill_(value)
    try:
        bound = net.certify()
    except LipschitzError:
        return
    assert value < 0 or (name == "cones" and buffer == "height")  # which cones do not use
    if value < 0:
        assert bool((attack(net, seeded(), rounds=2) <= bound * (1 + 1e-6)).all())


@EVERY
def test_scales_are_frozen(name):
    """The same predictor whatever other densities it is conditioned with."""
    where, g = problem("plane"), seeded()
    net = make_net(name, where, loud=3.0)
    D, x = densities(where, 2, g), readings(where, (12, 3), g)
    q = values(net, D, x)
    torch.testing.assert_close(values(net, D[:2], x[:2]), q[:, :2], atol=2e-6, rtol=0)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    values(net, 100 * D, x)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_scales_survive_degenerate_training_densities():
    """One simulator, or densities all alike: no division by zero, and the bound still holds."""
    where = problem("line")
    for name in names():
        for D in (bumps(where, 1, seeded()), bumps(where, 1, seeded()).expand(8, -1, -1), torch.zeros(4, 5, 27)):
            net = make_net(name, where)
            net.fit_scales(D)
            net.certify()
            q = values(net, densities(where, 1, seeded(1)), readings(where, (6, 3), seeded(2)))
            assert bool(torch.isfinite(q).all()), name


@EVERY
def test_readings_off_the_grid_see_no_density(name):
    where = problem("line")
    net, g = make_net(name, where), seeded()
    x = torch.full((1, 1, 1), 2.5, dtype=torch.float64)
    for step in range(3):
        assert float(net.local(bumps(where, 1, g).float(), step, x).abs().sum()) == 0.0


def test_steps_look_up_their_own_states():
    where, g = problem("line"), seeded()
    net, D = make_net("lookup", where), bumps(where, 3, g)
    x = readings(where, (3, 4), g)
    for step in range(3):
        states = where.graph.states_of(step)
        expected = torch.stack([where.grid.interpolate(D[:, s], x) for s in states], -1)
        torch.testing.assert_close(net.local(D.float(), step, x) * net.height, expected.float(), atol=1e-6, rtol=1e-6)


def test_lookup_summaries_by_hand():
    """Sorted values and mean positions, averaged over a layer's states (networks.md)."""
    where, g = problem("line"), seeded()
    net, D = make_net("lookup", where), densities(where, 1, g)
    got = net.summary(D)
    grid = where.grid
    ranks = sorted({min(26, round(share * 27)) for share in architectures.RANK_SHARES})
    centred = grid.nodes[:, 0] - 0.5
    for b in range(len(D)):
        expected = []
        for h in range(3):
            rows = [D[b, s] for s in where.graph.states_of(h)]
            for r in ranks:
                expected.append(sum(sorted(row.tolist(), reverse=True)[r] for row in rows) / len(rows))
            expected.append(sum(float((row * centred).sum() / centred.abs().sum()) for row in rows) / len(rows))
        torch.testing.assert_close(got[b], torch.tensor(expected, dtype=got.dtype), atol=1e-6, rtol=1e-6)


def test_sets_do_not_care_about_the_order_of_states():
    """States of a layer are swapped, with what is looked up at x left alone: nothing changes."""
    where, g = problem("line"), seeded()
    net = make_net("sets", where, loud=3.0).requires_grad_(False)
    D, x = bumps(where, 3, g).float(), readings(where, (3, 4), g)
    for step in range(3):
        local = net.local(D, step, x)
        q = net.raw_q(step, net.standardised(D), local, x)
        swapped = net.raw_q(step, net.standardised(D[:, [0, 3, 4, 1, 2]]), local, x)
        mixed = net.raw_q(step, net.standardised(D[:, [1, 0, 2, 3, 4]]), local, x)
        torch.testing.assert_close(swapped, q, atol=2e-6, rtol=0)
        assert float((mixed - q).abs().max()) > 1e-3


def test_settings_and_names_are_checked():
    where = problem("line")
    for wrong in ({"width": 7}, {"width": 0}, {"depth": 0}, {"x_width": 0}, {"lipschitz_bound": 0.0}):
        with pytest.raises(SettingError, match=f"expected net.lookup.{next(iter(wrong))}: a .*number"):
            make_net("lookup", where, **wrong)
    with pytest.raises(SettingError, match="members >= 1"):
        make_net("lookup", where, members=0)
    with pytest.raises(SettingError, match="film"):
        make_net("lookup/flim", where)
    with pytest.raises(SettingError, match="a key of net.cones: .*anchors; got net.cones.channels"):
        make_net("cones", where, channels=4)
    with pytest.raises(SettingError, match="lokup"):
        net_class("lokup")
    net = make_net("lookup", where)
    with pytest.raises(ObservationError, match="densities"):
        net.condition(torch.zeros(2, 5, 28))
    with pytest.raises(ObservationError, match="densities"):
        net.condition(torch.zeros(2, 4, 27))


@EVERY
def test_same_generator_same_weights(name):
    where = problem("line")
    one, two, other = (make_net(name, where, seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert any(not torch.equal(one[k], other[k]) for k in one)


def test_stacked_linear_rows_are_normalised_only_when_they_must():
    layer = StackedLinear(2, 3, 2, seeded(), bound=2.0)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[0.5, -0.5, 0.5], [4.0, 0.0, -4.0]]]).expand(2, 2, 3))
    used = layer.effective()
    assert used[0, 0].tolist() == [0.5, -0.5, 0.5]
    assert used[0, 1].tolist() == pytest.approx([1.0, 0.0, -1.0], abs=1e-5)


def swapped(where, wide, seed=0):
    """Densities [B, xi, G] of noise that is wide along the first axis where `wide` is 1, along the other at 0."""
    nodes, middle = where.grid.nodes, where.grid.nodes.mean(0)
    place = middle + 0.5 * (torch.rand(len(wide), where.graph.num_states, 1, 2, generator=seeded(seed)) - 0.5)
    along = torch.stack([0.4 + 0.4 * wide, 0.8 - 0.4 * wide], 1)[:, None, None]
    D = (-((nodes - place) / along).square().sum(-1) / 2).exp()
    return D / (D * where.grid.weights).sum(-1, keepdim=True)


def paying(where, pays, seed=0):
    """Samples at every state whose actions pay with these chances [B]."""
    B, n, A = len(pays), 32, where.spec.num_actions
    actions = torch.arange(n).expand(B, n) % A
    drawn = [
        torch.bernoulli(pays[:, None].expand(B, n), generator=seeded(seed + s)) for s in range(where.graph.num_states)
    ]
    return tuple(Transitions(torch.zeros(B, n, where.spec.obs_dim), actions, rewards.double()) for rewards in drawn)


def test_lookup_sees_profiles_where_only_these_tell_what_pays():
    """Noise that is wide along one axis or the other: sorted values of the whole density are the same for both."""
    where, w = problem("plane", nodes=17), torch.rand(96, generator=seeded(1), dtype=torch.float64)
    lookup, same = net_class("lookup"), torch.full_like(w, 0.5)
    told = TrainingData(swapped(where, w), paying(where, w))
    own = {"lipschitz_bound": 10.0}  # whatever the height of these densities
    assert lookup.suited(where, told, {"width": 8, **own}) == {"width": 8, "profiles": True, **own}
    assert lookup.suited(where, told, {"profiles": False, **own}) == {"profiles": False, **own}  # the user's word
    wide = swapped(where, same) * (0.5 + w)[:, None, None]  # heights tell: no need of them
    assert lookup.suited(where, TrainingData(wide, paying(where, w)), own) == own
    assert lookup.suited(where, TrainingData(told.D, paying(where, same)), own) == own
    line = problem("line")
    few = TrainingData(bumps(line, 96, seeded()), paying(line, w))
    assert lookup.suited(line, few, own) == own
    assert net_class("mlp").suited(where, told, {"width": 8, **own}) == {"width": 8, **own}


def test_lookup_sees_positions_where_states_move_against_each_other():
    """What moves one state to the right moves its neighbour in the layer to the left: the layer's mean stays."""
    where, w = problem("line", nodes=49), torch.rand(96, generator=seeded(1), dtype=torch.float64)
    place = where.grid.nodes.mean(0) + 0.5 * (w - 0.5)[:, None] * torch.tensor([0.0, 1.0, 1.0, -1.0, -1.0])
    D = (-((where.grid.nodes[:, 0] - place[..., None]) / 0.3).square() / 2).exp()
    lookup, own, data = net_class("lookup"), {"lipschitz_bound": 10.0}, TrainingData(D, paying(where, w))
    assert lookup.suited(where, data, own) == {"positions": True, **own}
    assert lookup.suited(where, data, {"positions": False, **own}) == {"positions": False, **own}  # the user's word


def off_by(where, w, seed):
    """Densities of one reading a state: an offset that all states share, and noise as wide as w says."""
    nodes, g = where.grid.nodes[:, 0], seeded(seed)
    offset = 0.6 * torch.rand(len(w), 1, generator=g, dtype=torch.float64) - 0.3
    noise = (0.02 + 0.3 * w)[:, None] * torch.randn(len(w), where.graph.num_states, generator=g, dtype=torch.float64)
    x = torch.tensor([0.5, 0.0, 0.2, 1.0, 0.8]) + offset + noise
    return torch.exp(-((nodes - x[..., None]) / 0.2).square() / 2)


def test_lookup_sees_places_where_few_readings_tell_by_these_what_pays():
    """Every density of one reading has one shape: only where they lie, all states together, says how wide noise is."""
    where, w = problem("line"), torch.rand(96, generator=seeded(1), dtype=torch.float64)
    lookup, own = net_class("lookup"), {"lipschitz_bound": 10.0}
    many = off_by(where, torch.zeros_like(w), 2)
    data = TrainingData(many, paying(where, w), 100.0, {1.0: off_by(where, w, 2), 9.0: many})
    assert lookup.suited(where, data, own) == {"places": 1024, **own}
    assert lookup.suited(where, data, {"places": 0, **own}) == {"places": 0, **own}  # the user's word
    same = TrainingData(many, paying(where, w), 100.0, {1.0: many})
    assert lookup.suited(where, same, own) == {"places": 0, **own}
    assert lookup.suited(where, TrainingData(many, paying(where, w)), own) == own  # never few


SIZES = {"lookup": "places", "cones": "anchors", "conv": "channels", "sets": "set_width", "charfun": "frequencies"}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("size", [-1, 2**14 + 1])
def test_a_size_that_is_none_is_refused_by_name(name, size):
    """As a setting, and in a policy file, where it is read before anything is built."""
    where, key = problem("plane"), SIZES[name]
    with pytest.raises(SettingError, match=rf"net\.{name}\.{key} (>=|<=)"):
        make_net(name, where, **{key: size})
    net = make_net(name, where)
    recipe = net.recipe()
    recipe["settings"][key] = size
    with pytest.raises((SettingError, CheckpointError), match=key):
        type(net).from_recipe(recipe, net.tensors(), where)
    if name != "lookup":
        with pytest.raises(SettingError, match=rf"net\.{name}\.{key} >= 1"):
            make_net(name, where, **{key: 0})


def test_ways_are_axes_and_diagonals_of_two():
    for d, count in ((1, 2), (2, 8), (3, 18)):
        assert len({*architectures.ways(d)}) == count * len(architectures.REACH)


def test_a_size_that_a_subclass_does_not_name_is_that_of_its_parent():
    mine = type("Mine", (net_class("sets"),), {"options": {"gain": 2}, "name": "mine"})
    assert mine(problem("line"), 1, seeded()).size_of("set_width") == net_class("sets").options["set_width"] > 1


def test_places_are_those_of_training_simulators_and_travel_with_the_net():
    where = problem("plane")
    net, D = make_net("lookup", where, places=40), bumps(where, 16, seeded(3))
    net.fit_scales(D)
    assert torch.equal(net.places, places_between(centres(D, where.grid), 40).float())
    again = type(net).from_recipe(net.recipe(), net.tensors(), net.problem)
    assert torch.equal(again.summaries(D), net.summaries(D))
    assert torch.equal(net.summaries(D)[:, -1], agreement(D.float(), net.places, where.grid))
    assert torch.equal(net.summaries(D)[:, :-1], make_net("lookup", where).summaries(D))


def test_a_larger_unit_of_readings_makes_no_smaller_class():
    """In units a hundredth as long densities are a hundredth as high: C_L is a hundred times as much, unless given."""
    line, w = problem("line"), torch.rand(96, generator=seeded(1), dtype=torch.float64)
    D, lookup = bumps(line, 96, seeded()), net_class("lookup")
    high = TrainingData(D * (4 / float(D.amax(-1).mean())), paying(line, torch.full_like(w, 0.5)))
    assert lookup.suited(line, high, {}) == {"lipschitz_bound": 40.0}
    low = TrainingData(high.D / 100, high.samples)
    for kind, own in ((lookup, 40.0), (net_class("mlp"), 100.0)):
        assert kind.suited(line, low, {})["lipschitz_bound"] == pytest.approx(100 * own)
    assert lookup.suited(line, low, {"lipschitz_bound": 3.0}) == {"lipschitz_bound": 3.0}
    net = lookup(line, 1, seeded(), **lookup.suited(line, low, {}))
    assert net.declared_bound == pytest.approx(4000)
    for own in ("auto", None):
        assert type("Own", (lookup,), {"default_bound": own}).suited(line, low, {}) == {}


def test_simulators_that_differ_more_than_their_densities_ask_for_a_larger_bound():
    """Heights from 4 to 4.2 tell w, and pay it: C_L must be 1 / 0.2 at least, and lookup takes 50 times that."""
    line, w = problem("line"), torch.linspace(0, 1, 96, dtype=torch.float64)
    shape = bumps(line, 1, seeded())
    shape = 4 * shape / shape.amax(-1, keepdim=True)
    pays = [torch.arange(32).expand(96, 32) % line.spec.num_actions, w[:, None].expand(96, 32)]
    samples = tuple(
        Transitions(torch.zeros(96, 32, line.spec.obs_dim), pays[0], pays[1] * (line.graph.layer[s] == 0))
        for s in range(line.graph.num_states)
    )
    data = TrainingData(shape * (1 + 0.05 * w[:, None, None]), samples)
    assert net_class("lookup").suited(line, data, {})["lipschitz_bound"] == pytest.approx(50 / 0.2, rel=1e-3)
    hidden = TrainingData(shape * (1 + 0.01 * w[:, None, None]), samples)  # 1250 would be noise
    assert net_class("lookup").suited(line, hidden, {}) == {"lipschitz_bound": 400.0}
    mild = TrainingData(shape * (1 + w[:, None, None]), samples)
    assert net_class("lookup").suited(line, mild, {}) == {"lipschitz_bound": 40.0}
