"""Confidence bounds: golden values, order relations, coverage and power on the return laws of theory.md 4.1."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy.special import betaincinv
from scipy.stats import binom
from support.pac_checks import check_failure_rate

from s2r_torch.assurance.confidence import BOUNDS, clopper_pearson, hoeffding, interval, lower, upper
from s2r_torch.errors import RewardError, SettingError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text())
GOLDEN_NAMES = {
    "hoeffding": "hoeffding",
    "maurer_pontil": "maurer_pontil",
    "chernoff_kl": "kl_chernoff",
    "hoeffding_bentkus": "hoeffding_bentkus",
    "anderson_dkw": "anderson_dkw",
    "betting": "wsr_plugin_running_max",
    "betting_final": "wsr_plugin_final",
}
SAMPLE = torch.tensor([((7 * i * i + 3 * i) % 20) / 20 for i in range(1, 41)], dtype=torch.float64)
ANY_LAW = [name for name in BOUNDS if name != "clopper_pearson"]


@pytest.mark.parametrize("case", GOLDEN["lower_confidence_bounds"]["cases"], ids=lambda case: f"delta={case['delta']}")
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_agrees_with_golden(name, case):
    got = BOUNDS[name](SAMPLE, float(case["delta"])).item()
    assert got == pytest.approx(float(case[GOLDEN_NAMES[name]]), abs=1e-13)


@pytest.mark.parametrize("case", GOLDEN["clopper_pearson"], ids=lambda case: f"{case['k']}-of-{case['n']}")
def test_clopper_pearson_agrees_with_golden(case):
    wins, M = int(case["k"]), int(case["n"])
    got = clopper_pearson(torch.tensor([1.0] * wins + [0.0] * (M - wins)), float(case["delta"])).item()
    assert got == pytest.approx(float(case["clopper_pearson_lower"]), abs=1e-12)


def test_every_bound_has_a_golden_value():
    assert set(BOUNDS) == set(GOLDEN_NAMES) | {"clopper_pearson"}


def test_hoeffding_bentkus_solves_its_equation():
    """The definition, by the binomial survival function instead of the incomplete beta function."""
    q = BOUNDS["hoeffding_bentkus"](SAMPLE, 0.05).item()
    assert math.e * binom.sf(math.floor(40 * 0.35 + 1e-9) - 1, 40, q) == pytest.approx(0.05, rel=1e-9)


def test_hoeffding_bentkus_survives_the_rounding_of_an_integer_sum():
    """Seventy times 0.1 sums to less than 7 in floating point; the bound must not fall to that of 6."""
    tenths = torch.full((70,), 0.1, dtype=torch.float64)
    assert sum([0.1] * 70) != 7.0
    exactly = torch.tensor([1.0] * 7 + [0.0] * 63)
    assert BOUNDS["hoeffding_bentkus"](tenths, 0.05) == BOUNDS["hoeffding_bentkus"](exactly, 0.05)


@pytest.mark.parametrize("name", BOUNDS)
def test_works_on_every_row_alone(name):
    G = (torch.rand(3, 4, 25, generator=torch.Generator().manual_seed(0)) < 0.6).to(torch.float32)
    together = BOUNDS[name](G, 0.1)
    assert together.shape == (3, 4) and together.dtype == torch.float64
    for i in range(3):
        for j in range(4):
            assert together[i, j] == pytest.approx(BOUNDS[name](G[i, j], 0.1).item(), abs=1e-15)


@pytest.mark.parametrize("name", BOUNDS)
def test_candidates_divide_delta(name):
    wins = torch.tensor([1.0, 0.0, 1.0, 1.0] * 10)
    assert BOUNDS[name](wins, 0.1, candidates=5) == BOUNDS[name](wins, 0.02)
    assert BOUNDS[name](wins, 0.1, candidates=5) < BOUNDS[name](wins, 0.1)


@pytest.mark.parametrize("name", BOUNDS)
def test_upper_mirrors_lower(name):
    wins = torch.tensor([1.0, 0.0, 1.0, 1.0] * 10)
    assert upper(wins, 0.1, bound=name) == 1 - lower(1 - wins, 0.1, bound=name)
    low, high = interval(wins, 0.1, bound=name)
    assert low == lower(wins, 0.05, bound=name) and high == upper(wins, 0.05, bound=name)
    assert low < 0.75 < high


@pytest.mark.parametrize("name", BOUNDS)
def test_range_is_scaled(name):
    wins = torch.tensor([1.0, 0.0, 1.0, 1.0] * 10, dtype=torch.float64)
    got = interval(4 * wins - 1, 0.1, bound=name, low=-1.0, high=3.0)
    for ours, plain in zip(got, interval(wins, 0.1, bound=name), strict=True):
        assert ours.item() == pytest.approx(4 * plain.item() - 1, abs=1e-12)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("M", [2, 500])
def test_constant_samples(name, value, M):
    bound = BOUNDS[name](torch.full((M,), value), 0.05).item()
    assert math.isfinite(bound) and bound <= value
    if M == 500:
        assert bound > value - 0.06


@pytest.mark.parametrize("name", BOUNDS)
def test_no_rows_give_no_bounds(name):
    assert BOUNDS[name](torch.zeros(0, 5), 0.05).shape == (0,)


def test_sharper_bounds_are_sharper():
    G = torch.rand(200, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    bounds = {name: BOUNDS[name](G, 0.05) for name in ANY_LAW}
    assert bool((bounds["chernoff_kl"] >= bounds["hoeffding"] - 1e-12).all())
    assert bool((bounds["anderson_dkw"] >= bounds["hoeffding"] - 1e-12).all())
    assert bool((bounds["betting"] >= bounds["betting_final"]).all())


def test_long_batches_are_worked_in_chunks(monkeypatch):
    G = torch.rand(7, 11, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole = BOUNDS["betting"](G, 0.05)
    monkeypatch.setattr("s2r_torch.assurance.confidence.CHUNK", 25)
    assert bool((BOUNDS["betting"](G, 0.05) == whole).all())


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.01, 1.01])
def test_values_out_of_range_are_refused(name, wrong):
    with pytest.raises(RewardError, match="values in"):
        BOUNDS[name](torch.tensor([0.0, 1.0, wrong]), 0.05)
    with pytest.raises(RewardError, match="values in"):
        upper(torch.tensor([0.0, 1.0, wrong]), 0.05, bound=name)


@pytest.mark.parametrize("name", BOUNDS)
def test_settings_out_of_range_are_refused(name):
    samples = torch.tensor([0.0, 1.0])
    for delta in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(SettingError, match="delta"):
            BOUNDS[name](samples, delta)
    for candidates in (0, 2.0, True):
        with pytest.raises(SettingError, match="candidates"):
            BOUNDS[name](samples, 0.1, candidates=candidates)
    for empty in (torch.zeros(3, 0), torch.tensor(0.5)):
        with pytest.raises(SettingError, match="M >= 1"):
            BOUNDS[name](empty, 0.1)


def test_bounds_name_what_they_need():
    with pytest.raises(RewardError, match="zeros and ones"):
        clopper_pearson(torch.tensor([0.0, 0.5]), 0.05)
    with pytest.raises(SettingError, match="variance"):
        BOUNDS["maurer_pontil"](torch.tensor([0.5]), 0.05)
    with pytest.raises(SettingError, match="DKW"):
        BOUNDS["anderson_dkw"](SAMPLE, 0.6)
    with pytest.raises(SettingError, match="a bound of"):
        lower(SAMPLE, 0.05, bound="student")
    with pytest.raises(SettingError, match="low < high"):
        lower(SAMPLE, 0.05, low=1.0, high=1.0)


def bernoulli(p):
    return p, lambda shape, g: (torch.rand(shape, generator=g, dtype=torch.float64) < p).double()


def beta(a, b):
    def draw(shape, g):
        return torch.from_numpy(betaincinv(a, b, torch.rand(shape, generator=g, dtype=torch.float64).numpy()))

    return a / (a + b), draw


def two_point(shape, g):
    return torch.where(torch.rand(shape, generator=g, dtype=torch.float64) < 0.2, 0.2, 0.95).double()


def fifths(shape, g):
    return (torch.rand(*shape, 5, generator=g, dtype=torch.float64) < 0.6).double().mean(-1)


# law: mean, sampler, and the table of theory.md 4.1: mean slack at M = 50, 200, 1000. Its Bentkus column holds
# for zeros and ones only: elsewhere it was computed with the ceiling of M mean, which the text above it rules out.
LAWS = {
    "bernoulli_70": (
        *bernoulli(0.7),
        {
            "hoeffding": (0.177, 0.086, 0.042),
            "chernoff_kl": (0.172, 0.081, 0.040),
            "hoeffding_bentkus": (0.158, 0.072, 0.035),
            "maurer_pontil": (0.356, 0.130, 0.051),
            "clopper_pearson": (0.127, 0.057, 0.028),
            "betting": (0.154, 0.070, 0.033),
        },
    ),
    "bernoulli_95": (
        *bernoulli(0.95),
        {
            "hoeffding": (0.176, 0.087, 0.041),
            "chernoff_kl": (0.111, 0.046, 0.021),
            "hoeffding_bentkus": (0.110, 0.042, 0.019),
            "maurer_pontil": (0.258, 0.085, 0.030),
            "clopper_pearson": (0.086, 0.033, 0.015),
            "betting": (0.101, 0.043, 0.018),
        },
    ),
    "beta_8_2": (
        *beta(8, 2),
        {
            "hoeffding": (0.172, 0.086, 0.038),
            "chernoff_kl": (0.157, 0.075, 0.032),
            "maurer_pontil": (0.220, 0.066, 0.019),
            "betting": (0.065, 0.021, 0.008),
        },
    ),
    "beta_80_20": (
        *beta(80, 20),
        {
            "hoeffding": (0.173, 0.087, 0.039),
            "chernoff_kl": (0.159, 0.075, 0.032),
            "maurer_pontil": (0.191, 0.051, 0.012),
            "betting": (0.062, 0.017, 0.004),
        },
    ),
    "two_point": (
        0.8,
        two_point,
        {
            "hoeffding": (0.172, 0.087, 0.038),
            "chernoff_kl": (0.156, 0.075, 0.031),
            "maurer_pontil": (0.289, 0.101, 0.033),
            "betting": (0.101, 0.047, 0.020),
        },
    ),
    "fifths": (
        0.6,
        fifths,
        {
            "hoeffding": (0.172, 0.087, 0.038),
            "chernoff_kl": (0.171, 0.087, 0.037),
            "maurer_pontil": (0.258, 0.086, 0.026),
            "betting": (0.069, 0.033, 0.013),
        },
    ),
}
TRIALS = {50: 2000, 200: 1000, 1000: 400}
DELTA = 0.05


def samples_of(law: str, M: int) -> torch.Tensor:
    _, draw, _ = LAWS[law]
    generator = torch.Generator().manual_seed(1000 * list(LAWS).index(law) + M)
    return draw((TRIALS[M], M), generator)


def names_for(law: str) -> list[str]:
    return list(BOUNDS) if law.startswith("bernoulli") else ANY_LAW


@pytest.mark.statistical
@pytest.mark.parametrize("M", TRIALS)
@pytest.mark.parametrize("law", LAWS)
def test_covers_the_mean(law, M):
    """Lower, upper and two-sided bounds fail with probability at most delta each."""
    mean, samples = LAWS[law][0], samples_of(law, M)
    for name in names_for(law):
        low, high = interval(samples, 2 * DELTA, bound=name)
        check_failure_rate((low > mean).sum(), TRIALS[M], DELTA)
        check_failure_rate((high < mean).sum(), TRIALS[M], DELTA)
        check_failure_rate(((low > mean) | (high < mean)).sum(), TRIALS[M], 2 * DELTA)


@pytest.mark.statistical
@pytest.mark.parametrize("M", TRIALS)
@pytest.mark.parametrize("law", LAWS)
def test_slack_is_that_of_the_table(law, M):
    """Power: the mean slack is as printed in theory.md 4.1, within simulation error of both."""
    mean, _, table = LAWS[law]
    samples = samples_of(law, M)
    noise = 4 * samples.std().item() / math.sqrt(M) * (1 / math.sqrt(TRIALS[M]) + 1 / math.sqrt(400))
    for name, slacks in table.items():
        slack = mean - BOUNDS[name](samples, DELTA).mean().item()
        assert slack == pytest.approx(slacks[list(TRIALS).index(M)], abs=noise + 0.0006), name


@pytest.mark.statistical
def test_all_candidates_are_covered_together():
    mean, draw, _ = LAWS["beta_8_2"]
    samples = draw((500, 8, 60), torch.Generator().manual_seed(5))  # 8 candidates
    for name in ANY_LAW:
        failed = (BOUNDS[name](samples, 0.2, candidates=8) > mean).any(-1)
        check_failure_rate(failed.sum(), 500, 0.2)


@pytest.mark.statistical
def test_the_check_has_power():
    """A bound that forgets its noise is caught: the sample mean is above the true mean half of the time."""
    samples = samples_of("beta_8_2", 50)
    with pytest.raises(AssertionError, match="promised 0.05"):
        check_failure_rate((samples.mean(-1) > 0.8).sum(), TRIALS[50], DELTA)
    assert hoeffding(samples, DELTA).mean() > 0.6
