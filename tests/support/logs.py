"""Recorded episodes of a small random world."""

import torch
from support.worlds import random_world

from s2r_torch.coverage import path_cover
from s2r_torch.deployment.recording.episodes import Recording

WORLD = random_world(5, 4, 2)


GRAPH = WORLD.graph


COVER = path_cover(GRAPH)


def record(paths, seed=0, theta=0.2) -> Recording:
    """One episode along each path of H - 1 actions."""
    world, parts = WORLD.world(theta, seed), []
    for path in paths:
        seen = [world.reset(1)]
        for a in path:
            seen.append(world.step(torch.tensor([a])))
        parts.append(Recording.of(tuple(path), seen))
    return Recording.joined(parts)


def random_paths(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(GRAPH.num_actions, (n, GRAPH.horizon - 1), generator=g).tolist()


def along_cover(n):
    return record([path for path in COVER for _ in range(n)])
