"""Lists from real rewards: the cover covers and is least, means are means, the limit is the best list."""

import pytest
import torch
from support.known import worlds_of

from s2r_torch.comparators.contract import REWARDED
from s2r_torch.comparators.real_list import RewardedLists, action_cover, mean_rewards
from s2r_torch.families import exact, make_family
from s2r_torch.runs.evaluation import attempt_values, optimal_values

FAMILIES = {name: make_family(name) for name in ("grid", "mixture", "lock")}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_the_cover_takes_every_action_in_every_state_with_fewest_sequences(family):
    graph, A = family.graph, family.spec.num_actions
    cover = torch.tensor(action_cover(graph))
    taken = set(zip(graph.visited(cover).flatten().tolist(), cover.flatten().tolist(), strict=True))
    assert taken == {(s, a) for s in range(graph.num_states) for a in range(A)}
    # an antichain of pairs: one layer's; on grid and lock no layers mix better (grid: 6, lock: 12 of the widest layer)
    assert len(cover) >= A * max(graph.states_per_layer)


def test_the_cover_of_the_grid_has_six_sequences():
    """Of the middle layer's 3 states x 2 actions; every other pair lies before or behind one of them."""
    assert len(action_cover(FAMILIES["grid"].graph)) == 6


def test_means_are_those_of_a_loop():
    grid = FAMILIES["grid"]
    seen = worlds_of(grid, 3).walk(action_cover(grid.graph), 4, worlds_of(grid, 3).seed, REWARDED)
    found = mean_rewards(grid.graph, seen)
    for w in range(3):
        heard: dict[tuple[int, int], list[float]] = {}
        for i in range(seen.actions.shape[1]):
            state = 0
            for h in range(5):
                action = int(seen.actions[w, i, h])
                heard.setdefault((state, action), []).append(float(seen.rewards[w, i, h]))
                state = int(grid.graph.next_state[state, action])
        for (s, a), rewards in heard.items():
            assert float(found[w, s, a]) == pytest.approx(sum(rewards) / len(rewards))


def test_many_episodes_find_the_best_list_of_every_world():
    grid = FAMILIES["grid"]
    worlds = worlds_of(grid, 20)
    values = attempt_values(RewardedLists(grid.graph, 4000).attempt(worlds), worlds, 1)
    assert float((optimal_values(worlds) - values).mean()) < 0.003  # on grid the best list of one world is its optimum
    mixture = FAMILIES["mixture"]
    worlds = worlds_of(mixture, 20)
    values = attempt_values(RewardedLists(mixture.graph, 4000).attempt(worlds), worlds, 1)
    best = [exact.open_loop(mixture.truth(theta[None]))[1] for theta in worlds.theta]
    assert values.tolist() == pytest.approx(best, abs=0.01)
