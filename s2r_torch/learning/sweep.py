"""One backward sweep of TD-Eliminate over the discovered states (theory.md 3.3, Theorem R)."""

from __future__ import annotations

from s2r_torch.learning.elimination import Judges, Knowledge, td_eliminate


def sweep(judges: Judges) -> Knowledge:
    """Runs TD-Eliminate once per state, from the last layer to the first; any survivor may be deployed.

    Args:
        judges: simulators, densities, class and budget.

    Returns:
        Knowledge with every state learned.

    Raises:
        RealizabilityError: no predictor survived.

    Paper deviation:
        Replaces DFS-Learn, Consensus and Learn-on-Simulators: Algorithm 2 already found all states (theory.md 3.3).

    Cost:
        n_train decisions at every state of every simulator (`tours.decisions`).
    """
    knowledge = Knowledge.blank(judges)
    for _, state in judges.graph.backward():
        knowledge = td_eliminate(state, knowledge, judges)
    return knowledge
