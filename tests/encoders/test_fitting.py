"""How encoders are fitted and chosen: losses against loops, separations where they are known, and whole fits."""

import math

import pytest
import torch
from support.strip import strip

from s2r_torch.encoders import views as views_module
from s2r_torch.encoders.choosing import Judged, best_of, judge, separations, smallest
from s2r_torch.encoders.encoding import made
from s2r_torch.encoders.fitting import TEMPERATURE, FeatureNet, Lists, moments, path_loss, same_paths
from s2r_torch.encoders.pca import principal
from s2r_torch.encoders.views import REPEATS, Seen, Views
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.families import make_family
from s2r_torch.rng import Seed


def views_of(family, count=24, seed=0) -> Views:
    root = Seed.root(seed)
    theta = family.prior(count, root.child("theta").generator())
    return Views(Guard(family.simulators(theta, range(count)), Ledger(), "encode"), root.child("views"))


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- views -------------------------------------------------------------------------------------------------------------


def test_views_are_the_same_bits_in_parts_and_every_episode_is_counted(monkeypatch):
    whole = views_of(strip())
    seen = whole.through(lambda x: x[..., :2])
    n, B = len(whole.sequences), 24
    assert seen.z.shape == (B, n, 3, 2) and whole.simulators.ledger.counts["encode"] == B * n
    monkeypatch.setattr(views_module, "AT_ONCE", 5 * n * 12)
    parts = views_of(strip()).through(lambda x: x[..., :2])
    assert torch.equal(parts.z, seen.z) and torch.equal(parts.rewards, seen.rewards)


def test_all_paths_are_looked_at_where_there_are_few_and_those_that_pay_where_there_are_many():
    sequences = views_of(strip()).sequences
    assert len(sequences[:, :-1].unique(dim=0)) == 9 and len(sequences) == 9 * REPEATS
    assert sorted(sequences[:REPEATS, -1].unique().tolist()) == [0, 1, 2]
    lock = make_family("lock", horizon=4)  # 64 paths, of which two pay
    found = {tuple(path) for path in views_of(lock).sequences[:, :-1].tolist()}
    assert len(found) == views_module.PREFIXES and {path[:-1] for path in lock.lists} <= found


def test_rewards_are_those_of_the_sequences():
    views = views_of(strip(), 200)
    seen = views.through(lambda x: x[..., :1])
    lists, w = Lists.of(seen), views.simulators.inner.theta[:, 1]
    paid = {tuple(actions): lists.mean[:, i] for i, actions in enumerate(seen.sequences.unique(dim=0).tolist())}
    for actions, expected in {(0, 2, 0): w, (1, 2, 1): 1 - w, (0, 1, 2): 0 * w}.items():
        assert abs(float((paid[actions] - expected).mean())) < 0.05


# -- losses ------------------------------------------------------------------------------------------------------------


def test_path_loss_is_the_cross_entropy_of_a_loop():
    features, sequences = random(2, 3, 4, 2, 2), torch.tensor([[0, 0], [0, 1], [1, 0]]).repeat_interleave(REPEATS, 0)
    same = same_paths(sequences)
    assert same[0].all() and same[1].tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    total = []
    for b in range(2):
        for step in range(2):
            centres = [features[b, k, :2, step].mean(0) for k in range(3)]
            for k in range(3):
                for z in features[b, k, 2:, step]:
                    weights = [math.exp(-float((z - c).square().sum()) / (2 * TEMPERATURE**2)) for c in centres]
                    right = sum(w for other, w in enumerate(weights) if same[step, k, other])
                    total.append(-math.log(right / sum(weights)))
    assert float(path_loss(features, same)) == pytest.approx(sum(total) / len(total), rel=1e-4)


def test_moments_tell_spread_and_place():
    z = random(1, 4, 500, 2, 2)
    wide = z * torch.tensor([2.0, 1.0]) + torch.tensor([0.0, 3.0])
    one, other = moments(z)[0].view(2, 5), moments(wide)[0].view(2, 5)
    torch.testing.assert_close(
        other - one - torch.tensor([0, 3, math.log(2), 0, 0.0]), torch.zeros(2, 5), atol=0.1, rtol=0
    )


# -- choosing ----------------------------------------------------------------------------------------------------------


def seen_at(centres, noise=0.1, B=6):
    """Readings of three paths around these centres at step 1; step 0 is one state."""
    sequences = torch.tensor([[0, 0], [1, 0], [2, 0]]).repeat_interleave(REPEATS, 0)
    z = torch.zeros(B, 3, REPEATS, 2, 2)
    z[..., 1, 0] = torch.tensor(centres)[:, None]
    return Seen((z + noise * random(*z.shape)).flatten(1, 2), torch.zeros(B, 3 * REPEATS, 2), sequences)


def test_separation_is_one_for_disjoint_readings_and_zero_for_one_law():
    apart = separations(seen_at([0.0, 0.0, 5.0]))
    assert float(apart[0].max()) == 0 and float(apart[1, 0, 1]) < 0.15
    assert float(apart[1, 0, 2]) == float(apart[1, 1, 2]) == 1 and torch.equal(apart, apart.mT)


def test_the_candidate_that_tells_states_apart_is_taken_then_the_one_that_shows_what_pays():
    def judged(separation, payoff):
        return Judged(torch.tensor([[[0.0, separation], [separation, 0.0]]]), payoff, 0.5)

    candidates = [judged(0.2, 0.9), judged(0.95, 0.6), judged(0.9, 0.7), judged(0.5, 0.8)]
    assert best_of(candidates) == 2 and smallest(candidates) == pytest.approx([0.2, 0.95, 0.9, 0.5])
    assert smallest([judged(0.1, 0.5)]) == [1.0]  # nobody tells anything apart: one state


def test_payoff_is_what_features_tell_held_out():
    """The first feature is w at every step: its mean says which of two lists pays."""
    w, sequences = torch.linspace(0, 1, 60), torch.tensor([[0], [1]]).repeat_interleave(REPEATS, 0)
    rewards = torch.stack([w, 1 - w], 1).double().repeat_interleave(REPEATS, 1)[..., None]
    shown = torch.stack([w[:, None].expand(60, 2 * REPEATS), random(60, 2 * REPEATS)], -1)[:, :, None] + 0.01 * random(
        60, 2 * REPEATS, 1, 2
    )
    found = judge(Seen(shown, rewards, sequences))
    blind = judge(Seen(random(60, 2 * REPEATS, 1, 2), rewards, sequences))
    assert found.payoff > 0.74 and found.fixed == pytest.approx(0.5) and blind.payoff < 0.6


# -- whole fits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(50, 6), (8, 30)])
def test_principal_components_are_those_of_the_singular_value_decomposition(shape):
    x = random(*shape) * torch.arange(1, shape[1] + 1)
    mean, components, share = principal(x, 3)
    _, scale, directions = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    ours = torch.nn.functional.normalize(components, dim=1)
    torch.testing.assert_close((ours @ directions[:3].mT).abs(), torch.eye(3), atol=2e-3, rtol=0)
    torch.testing.assert_close(((x - mean) @ components.mT).std(0), torch.ones(3), atol=1e-3, rtol=0)
    assert share == pytest.approx(float(scale[:3].square().sum() / scale.square().sum()), rel=1e-3)


def fitted(name, seed=0, **settings):
    phi = made(name, settings, strip().spec)
    return phi, phi.module.fit(views_of(strip(), 48, seed), Seed.root(seed))


def test_a_learned_encoder_tells_states_apart_shows_what_pays_and_is_a_function_of_its_seed():
    phi, notes = fitted("learned", steps=60, payoff=(0.3,))
    seen = views_of(strip(), 40, seed=9).through(phi)
    found = judge(Seen(seen.z.float(), seen.rewards, seen.sequences))
    assert smallest([found])[0] > 0.8 and found.payoff > 0.6 > found.fixed
    assert "taken" in notes[0] and "smallest separation" in notes[0]
    assert float(seen.z.abs().max()) < 3
    again, _ = fitted("learned", steps=60, payoff=(0.3,))
    assert all(torch.equal(value, again.tensors()[name]) for name, value in phi.tensors().items())


def test_principal_components_are_a_candidate_that_a_network_must_beat():
    """Without a single step the trained candidate is no better than components; the fit goes on with one of them."""
    net = FeatureNet(4, 8, 2).fresh(None)
    x = random(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(net.unscaled(x), x[:, :2])
