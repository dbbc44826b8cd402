"""Judges and classes for Algorithms 3 to 6."""

import naive
import torch
from support.worlds import class_of

from s2r_torch.episodes import Guard, Ledger

TIGHT = {"phi": 0.002, "b_bar": 0.003, "epsilon_test_step": 0.1}


def constant_class(world, values):
    """Members that predict one number each, everywhere."""
    shape = (len(values), world.graph.horizon, 2 * world.spec.max_states_per_layer, world.graph.num_actions)
    return class_of(world, torch.tensor(values, dtype=torch.float64)[:, None, None, None].expand(shape).contiguous())


def rolling(judges, oracle, n):
    """Rollouts of the naive greedy policy, action by action, in the same simulators and from the same streams."""
    fresh, graph = Guard(judges.simulators.inner, Ledger(), "oracle"), judges.graph

    def roll(f, number):
        x = fresh.reset(n, judges.seed.child("rollout", number).generators(fresh.ids))
        states = [[[] for _ in range(n)] for _ in range(oracle.B)]
        returns = [[0.0] * n for _ in range(oracle.B)]
        at = [[0] * n for _ in range(oracle.B)]
        for h in range(graph.horizon):
            actions = torch.zeros(oracle.B, n, dtype=torch.int64)
            for b in range(oracle.B):
                for j in range(n):
                    states[b][j].append(at[b][j])
                    actions[b, j] = naive.greedy(oracle.predictors[f](b, h, float(x[b, j, 0])))
                    at[b][j] = int(graph.next_state[at[b][j], actions[b, j]])
            x, reward = fresh.step(actions)
            returns = [[returns[b][j] + float(reward[b, j]) for j in range(n)] for b in range(oracle.B)]
        return states, returns

    return roll


def probing(judges):
    """N_2 distinct simulators, one episode each, in the order that the round's stream gives."""

    def probes(number):
        generator = judges.seed.child("probe", number).generator()
        order = torch.randperm(len(judges.simulators), generator=generator).tolist()
        return [(b, 0) for b in order[: judges.budget.n_probes]]

    return probes
