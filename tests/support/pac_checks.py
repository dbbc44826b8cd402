"""A claim "with probability at least 1 - delta" as a test (CONTRIBUTING.md)."""

from scipy.stats import binomtest


def check_failure_rate(failures: int, trials: int, delta: float) -> None:
    """Fails when so many failures would come up with probability below 1e-4, were each trial's at most delta."""
    p_value = binomtest(int(failures), int(trials), delta, alternative="greater").pvalue
    assert p_value >= 1e-4, f"{failures} failures in {trials} trials, promised {delta}: p = {p_value:.2e}"
