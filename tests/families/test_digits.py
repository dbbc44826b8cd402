"""`digits` in closed form: who pays whom, what theta does to images, and what a wrong parameter says."""

import pytest
import torch
from support.optional import needs

from s2r_torch.errors import SettingError
from s2r_torch.families import exact, make_family
from s2r_torch.rng import Seed


@pytest.fixture(scope="module")
def digits():
    needs("digits")
    return make_family("digits")


def images(family, theta, room, n=400, seed=0):
    theta = torch.tensor(theta, dtype=torch.float64)
    rooms = torch.full((len(theta), n, 1), float(room), dtype=torch.float64)
    return family.sensor.read(theta, rooms, Seed.root(seed).generators(range(len(theta))))


def test_one_of_two_chests_pays(digits):
    theta = digits.prior(200, Seed.root(0).generator())
    truth, w = digits.truth(theta), theta[:, 2]
    torch.testing.assert_close(exact.optimal(truth)[0][:, 0], torch.maximum(w, 1 - w))
    assert truth.graph.states_per_layer == [1, 3, 4, 5]
    assert exact.open_loop(truth)[1] == pytest.approx(float(torch.maximum(w.mean(), 1 - w.mean())), abs=1e-9)
    assert digits.spec.obs_dim == 64 and digits.spec.obs_names[9] == "pixel_1_1"


def test_theta_turns_images_and_makes_them_bright_and_unsteady(digits):
    x = images(digits, [[0.0, 1.0, 0.0], [0.0, 1.2, 0.0], [0.0, 1.0, 1.0]], 0)
    light = x.sum(-1)
    assert float(light[1].mean() / light[0].mean()) == pytest.approx(1.2, rel=0.04)
    assert float(light[2].mean() / light[0].mean()) == pytest.approx(1.0, rel=0.04)
    assert float(light[2].std()) > 1.5 * float(light[0].std())
    one = images(digits, [[90.0, 1.0, 0.0], [0.0, 1.0, 0.0]], 1)
    turned = one.mean(1).view(2, 8, 8)
    torch.testing.assert_close(turned[0], torch.rot90(turned[1], 1, (0, 1)), atol=0.05, rtol=0)


def test_readings_stay_in_the_box_and_the_quadrature_is_a_function_of_theta(digits):
    theta = digits.prior(20, Seed.root(1).generator())
    x = images(digits, theta.tolist(), 3, 50)
    assert bool((x > digits.spec.low[0]).all()) and bool((x < digits.spec.high[0]).all())
    truth, some = digits.truth(theta), digits.truth(theta[[3, 5]])
    torch.testing.assert_close(truth.x[[3, 5]], some.x)
    torch.testing.assert_close(truth.weight.sum(-1), torch.ones(20, truth.graph.num_states, dtype=torch.float64))
    state = truth.graph.end((1,))  # room 3
    mean = (truth.weight[..., None] * truth.x).sum(2)[:, state].mean(0)
    torch.testing.assert_close(mean, images(digits, theta.tolist(), 3, 500).mean((0, 1)), atol=0.03, rtol=0)


@pytest.mark.parametrize(
    "wrong", [{"tilt": -1.0}, {"exposure_high": 0.5}, {"flicker_high": 1.5}, {"grain": 0.0}, {"points": 1}]
)
def test_parameters_out_of_range(wrong):
    needs("digits")
    with pytest.raises(SettingError):
        make_family("digits", **wrong)
