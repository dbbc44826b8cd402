"""Worlds of public packages as families: who they pay, against closed forms, and what `check_family` finds."""

import gymnasium
import numpy as np
import pytest
import torch
from support.optional import needs

from s2r_torch.episodes import Guard, Ledger, observe
from s2r_torch.families import exact, make_family
from s2r_torch.families.check import check_family
from s2r_torch.families.treasure import HORIZON, LARGEST, TREASURES
from s2r_torch.rng import Seed

STATES = {"cliffwalking": 53, "minigrid": 84, "minigrid_images": 25, "pendulum": 37}


def family_and_theta(name, n=200):
    needs(name)
    family = make_family(name)
    return family, family.prior(n, Seed.root(0).generator())


@pytest.mark.parametrize("name", sorted(STATES))
def test_one_of_two_places_pays(name):
    """V* = max(w, 1 - w), world by world, and a fixed list earns w or 1 - w everywhere."""
    family, theta = family_and_theta(name, 4 if name == "minigrid_images" else 200)
    truth, w = family.truth(theta), theta[:, 2]
    torch.testing.assert_close(exact.optimal(truth)[0][:, 0], torch.maximum(w, 1 - w))
    assert truth.graph.num_states == STATES[name]
    assert exact.open_loop(truth)[1] == pytest.approx(float(torch.maximum(w.mean(), 1 - w.mean())), abs=1e-9)


def test_images_are_the_rooms_own_in_the_light_of_theta():
    """The mean of 4000 readings after some actions, against MiniGrid's frame: flicker and grain have mean 0."""
    family, theta = family_and_theta("minigrid_images", 2)
    env = gymnasium.make("MiniGrid-Empty-5x5-v0", disable_env_checker=True).unwrapped
    env.reset(seed=0)
    simulators = Guard(family.simulators(theta, [0, 1]), Ledger(), "test")
    for action in (2, 1):
        env.step(action)
    frame = torch.from_numpy(env.get_frame(highlight=False, tile_size=4) / 255.0)
    seen = observe(simulators, (2, 1), 4000, Seed.root(0)).mean(1).view(2, 20, 20, 3)
    for (light, warmth, _), mean in zip(theta.tolist(), seen, strict=True):
        wanted = frame * light * torch.tensor([1 + warmth, 1.0, 1 - warmth])
        assert float((mean - wanted).abs().max()) < 0.02  # 4.5 standard errors of the brightest pixel


def test_the_best_treasure_depends_on_the_price_of_time():
    """V* is the largest of what each treasure is worth with the fewest moves there are to it."""
    family, theta = family_and_theta("treasure")
    w = theta[:, 2]
    worth = [(1 - w) * v / LARGEST + w * (1 - (r + c - 1) / HORIZON) for (r, c), v in TREASURES.items()]
    torch.testing.assert_close(exact.optimal(family.truth(theta))[0][:, 0], torch.stack(worth).amax(0))


def test_a_pole_that_stands_pays_by_the_side_of_its_cart():
    """What lists of pushes earn, against MuJoCo's own environment, pushed four steps at a time."""
    family, theta = family_and_theta("pendulum", 3)
    truth, w = family.truth(theta), theta[:, 2]
    best = [exact.open_loop(family.truth(torch.tensor([[0.0, 1.0, side]])))[0] for side in (0.0, 1.0)]
    lists = [(1,) * 7, *best, *torch.randint(3, (20, 7), generator=torch.Generator().manual_seed(0)).tolist()]
    env, seen = gymnasium.make("InvertedPendulum-v5", reset_noise_scale=0.0), set()
    for pushes in lists:
        observation, fallen = env.reset(seed=1)[0], False
        for push in pushes:
            for _ in range(4):
                if not fallen:
                    observation, _, fallen, _, _ = env.step(np.array([0.3 * (push - 1)]))
        ending = "fallen" if fallen else "right" if observation[0] > 0 else "left"
        pays = {"fallen": 0 * w, "right": w, "left": 1 - w}[ending]
        earned = exact.policy_values(truth, lambda step, x, pushes=pushes: torch.full(x.shape[:2], pushes[step]))[:, 0]
        torch.testing.assert_close(earned, pays.double())
        seen.add(ending)
    assert seen == {"fallen", "right", "left"}
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted({*STATES} - {"minigrid_images"}), "treasure"])
def test_they_are_what_they_say_and_densities_are_needed(name):
    report = check_family(family_and_theta(name, 1)[0])
    report.require()
    assert [finding.level for finding in report["densities are needed"]] == ["ok"]
    assert [finding.level for finding in report["what pays shows"]] == ["ok"]
