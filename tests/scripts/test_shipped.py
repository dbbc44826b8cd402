"""The policies in checkpoints/, as the README deploys them."""

from pathlib import Path

import pytest
import torch
from make_checkpoints import MOST_BYTES, SCORES, check, digests, plain_code

from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.likeness import UNTESTED
from s2r_torch.deployment.policy_file import load_policy_file
from s2r_torch.episodes import Ledger
from s2r_torch.families import exact, make_family
from s2r_torch.rng import Seed

FOLDER = Path(__file__).resolve().parents[2] / "checkpoints"
WORLDS = 12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid", "frozenlake"])
def test_a_shipped_policy_was_made_by_this_code(name):
    """Else: python scripts/make_checkpoints.py."""
    assert check(name) == []
    assert load_policy_file(FOLDER / f"{name}.safetensors").certificate.refusals.scores == SCORES


def test_what_made_a_policy_is_all_that_decides_its_numbers_and_no_word(tmp_path):
    found = digests("grid")
    deciding = {"density/kernels.py", "predictors/training/fit.py", "learning/rules.py", "families/grid.py", "tours.py"}
    assert {f"s2r_torch/{name}" for name in deciding} | {"conf/run/experiment/grid.yaml"} <= {*found}
    assert not any("frozenlake" in name or "reports" in name or "commands" in name for name in found)
    one, other, changed = (tmp_path / f"{i}.py" for i in range(3))
    one.write_text('"""Words."""\ndef f(x):\n    return x + 1\n')
    other.write_text('def f( x ):\n    """Others."""\n    # and more\n    return x+1\n')
    changed.write_text("def f(x):\n    return x + 2\n")
    assert plain_code(one) == plain_code(other) != plain_code(changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid", "frozenlake"])
def test_a_shipped_policy_is_nearly_optimal_and_keeps_its_promise(name):
    path = FOLDER / f"{name}.safetensors"
    assert path.stat().st_size < MOST_BYTES and (FOLDER / f"{name}.png").exists()
    file = load_policy_file(path)
    policy, certificate, trained = file.policy, file.certificate, file.family
    assert (FOLDER / f"{name}.certificate.txt").read_text() == certificate.page() + "\n"
    family, values, best, ledger = make_family(trained["name"], **trained["parameters"]), [], [], Ledger()
    for w in range(WORLDS):
        seed = Seed.root(w).child("shipped")
        theta = family.prior(1, seed.child("theta").generator())
        deployed = deploy(policy, family.world(theta[0], seed.child("world").generator()), ledger, refuse=False)
        assert deployed.as_trained and deployed.likeness.verdict != UNTESTED
        truth = family.truth(theta)
        values.append(exact.policy_values(truth, policy.condition(deployed.D_real[None]).act)[0, 0])
        best.append(exact.optimal(truth)[0][0, 0])
    assert ledger.counts["real"] == WORLDS * certificate.sequences * certificate.n_real
    value, optimal = float(torch.stack(values).mean()), float(torch.stack(best).mean())
    assert value > 0.95 * optimal
    spread = float(torch.stack(values).std()) / WORLDS**0.5
    assert value > certificate.value_lower - 4 * spread  # worlds scatter around the mean that is certified
