"""How networks are trained in a run: the class F, and networks of comparators in the same way."""

from __future__ import annotations

from dataclasses import replace

from s2r_torch.coverage import passes, path_cover, typical
from s2r_torch.density.patches import Patches
from s2r_torch.episodes import Guard
from s2r_torch.learning.estimator import estimate_draws
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.train import Trainer
from s2r_torch.predictors.training.work import load_lightning
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed
from s2r_torch.runs.configuring import known_class
from s2r_torch.runs.context import Context
from s2r_torch.runs.results import Explored
from s2r_torch.workers.engines import SERIAL, Workers


def start_trainers(context: Context) -> None:
    """Has workers load what trains, where they will: it takes seconds, in which this process has other things to do."""
    if known_class(context.settings, context.family) is None:
        _trainers(context).start(load_lightning)


def make_trainer(context: Context, problem: Problem, data: TrainingData) -> Trainer:
    """Trains networks as the class F is trained."""
    settings = context.settings
    return Trainer(
        problem,
        data,
        settings.predictors.training,
        context.seed,
        context.progress,
        settings.trainer.accelerator,
        context.fits,
        context.tensorboard,
        _trainers(context),
    )


def _trainers(context: Context) -> Workers:
    """Who fits layers: there is one GPU."""
    return context.workers if context.settings.trainer.accelerator == "cpu" else SERIAL


def densities_of_fewer(context: Context, explored: Explored, simulators: Guard, seed: Seed) -> dict[float, Patches]:
    """Readings per state -> densities of the training simulators as deployments with so few see them: [k B, xi, G]."""
    predictors, graph = context.settings.predictors, explored.exploration.graph
    lenient = replace(explored.estimator, off_grid_limit=1.0, allow_constant=True)  # of few, one may be anywhere
    along, fewer = passes(graph, path_cover(graph)), {}
    for n in predictors.readings:
        readings = typical(n * along)
        if readings < explored.exploration.n_dist:
            times, own = predictors.draws_of(n, graph), seed.child("fewer", n)
            fewer[readings] = estimate_draws(simulators, graph, lenient, n * along, times, own)
    return fewer
