"""Room to grow: a comparator, a family and a network of one's own are one new file each, and need no other edit."""

import sys
from pathlib import Path

import pytest
from support.smoke import small_settings

from s2r_torch.comparators.contract import COMPARATORS
from s2r_torch.deployment.policy_file import load_policy
from s2r_torch.families import FAMILIES, make_family
from s2r_torch.predictors.registry import NETS
from s2r_torch.registry import import_plugins
from s2r_torch.reports.files import write_reports
from s2r_torch.runs.run import execute

COMPARATOR = """
from dataclasses import dataclass

import torch

from s2r_torch.comparators.contract import Access, Attempt, register_comparator


@dataclass(frozen=True)
class First:
    action: int

    def attempt(self, worlds):
        return Attempt(lambda step, x: torch.full(x.shape[:2], self.action, dtype=torch.int64))


@register_comparator("stubborn")
@dataclass(frozen=True)
class Stubborn:
    action: int = 0
    label = "always one action"
    access = Access()
    learner = First

    def fit(self, known):
        return First(self.action)
"""
FAMILY = """
from s2r_torch.families import register_family
from s2r_torch.families.grid import Grid


@register_family("quiet_grid")
class QuietGrid(Grid):
    def __init__(self, noise_high: float = 0.3):
        super().__init__(noise_high=noise_high)
        self.name = "quiet_grid"

    def parameters(self):
        return {"noise_high": 0.3}
"""
NETWORK = """
from s2r_torch.predictors.nets import Net, register
from s2r_torch.predictors.nets.embeddings import layer_means


@register("peaks_only")
class Peaks(Net):
    def summary(self, D):
        return layer_means(D.amax(-1, keepdim=True), self.problem.graph.layer).flatten(1)
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Three modules in a user's folder; whatever they register is forgotten afterwards."""
    for name, text in {"my_comparator": COMPARATOR, "my_family": FAMILY, "my_network": NETWORK}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for registry in (COMPARATORS, FAMILIES, NETS):
        monkeypatch.setattr(registry, "_known", dict(registry._known))
    yield ["my_comparator", "my_family", "my_network"]
    for name in ("my_comparator", "my_family", "my_network"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_one_new_file_each(plugins, tmp_path):
    import_plugins(plugins)
    settings = small_settings("comparators.stubborn.action=1", "net=peaks_only", "net.peaks_only.width=8")
    results = execute(settings, make_family("quiet_grid"), tmp_path / "run")
    summary = write_reports(results, tmp_path / "run")
    assert 0 <= summary.value.policies["stubborn"] <= 1 and summary.family["name"] == "quiet_grid"
    assert load_policy(tmp_path / "run" / "policy.safetensors").ensemble.groups[0].name == "peaks_only"
    again = execute(settings, make_family("quiet_grid"), tmp_path / "run")
    assert again.evaluated.values == results.evaluated.values
    page = Path(tmp_path / "run" / "report.html").read_text()
    assert "always one action" in page and "code.my_family" in page
