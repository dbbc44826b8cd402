"""scripts/bench.py likeness on a pruned policy: worlds go on where it does not look."""

import argparse

import bench_likeness
import pytest


@pytest.mark.slow
def test_changes_of_a_lake_that_is_pruned_are_found():
    """Of edges led elsewhere, after which the walk leaves what the policy knows; no hole lies where it goes."""
    parser = argparse.ArgumentParser()
    bench_likeness.arguments(parser)
    options = parser.parse_args(["--worlds", "4", "--like", "4", "--scores", "60"])
    site = bench_likeness.prepared("frozenlake", options.scores)
    assert site.policy.problem.graph.pruned and not site.whole.pruned
    found = {row.name: row.found for row in bench_likeness.rows(site, options)}
    assert "a hole removed" not in found
    sure = ("a state moved by half a cell", "an edge leads elsewhere", "a hole added")
    assert [found[name] for name in sure] == [1.0, 1.0, 1.0]
