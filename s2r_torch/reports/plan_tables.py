"""What `plan.py` prints: sample sizes, budgets and orders as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from rich.console import Console
from rich.table import Table

from s2r_torch.planner.certification import certification_simulators
from s2r_torch.planner.comparators import rival_sizes
from s2r_torch.planner.curves import Curves, exact_crossings
from s2r_torch.planner.looking import Looking
from s2r_torch.planner.orders import WITH_REWARD, crossings, leading_orders
from s2r_torch.planner.plan import Plan, Setting
from s2r_torch.text import printable

NAMES = {
    "paper": "paper, every path",
    "paper_cover": "paper, path cover",
    "loops_cover": "Theorem L",
    "sweep_cover": "Theorem R",
    "real_as_stated": "paper as stated",
    "real": "paper, factor HSA restored",
    "real_cover": "paper, path cover",
    "real_sweep": "Theorem R",
    "krishnamurthy2016": "Krishnamurthy 2016, with reward",
    "jiang2017": "Jiang 2017, Sun 2019 as quoted, with reward",
    "jiang2017_layered": "Jiang 2017, Sun 2019, rank max |S_h|, with reward",
}
LETTERS = (
    "H steps, at most S states in a layer, A actions, F predictors, w action sequences that pass all states; wanted: "
    "within epsilon of V*, with probability 1 - delta. Densities of d numbers, alpha times smooth with constant "
    "C_dist, states zeta apart; predictors Lipschitz in them with C_L. Each is a setting."
)
SPREADS = (0.5, 0.3, 0.1)  # of values over simulators


def show(console: Console, setting: Setting, plans: dict[str, Plan], curves: Curves, path: str | None) -> None:
    console.print("", headline(setting), "", LETTERS, "", sep="\n", highlight=False)
    console.print(budget_table(plans), "")
    console.print(order_table(setting), "")
    console.print(rival_table(setting), "")
    console.print(crossing_table(setting, curves), "")
    console.print(certification_table(setting), "")
    if path is not None:
        console.print(f"Figure: {path}", highlight=False)


def answer(name: str, curve: Looking | None, epsilon: float) -> str:
    """How many real episodes the policy in a file needs, in a sentence."""
    if curve is None:
        return f"{printable(name)} holds no curve of value against real episodes: its run was not evaluated."
    enough = curve.episodes_for(epsilon)
    shares = (f"{n:,}: {v / curve.optimal:.3f}" for n, v in zip(curve.episodes, curve.value, strict=True))
    needs = (
        f"{enough:,} real episodes without reward are enough to lose at most {epsilon:g}"
        if enough
        else f"it loses more than {epsilon:g} even after {curve.episodes[-1]:,} real episodes"
    )
    return (
        f"{printable(name)}: {needs}, on average over worlds like the simulators (95 %, measured). "
        f"Share of the best value {curve.optimal:.3f} after so many: {', '.join(shares)}."
    )


def headline(setting: Setting) -> str:
    """The problem that is planned for, in letters (`LETTERS`)."""
    return (
        f"H = {setting.horizon}, S = {setting.max_states_per_layer}, A = {setting.num_actions}, "
        f"F = {number(setting.num_members)}, w = {setting.cover_width}, "
        f"epsilon = {setting.epsilon:g}, delta = {setting.delta:g}\n"
        f"alpha = {setting.order:g}, d = {setting.obs_dim}, C_L = {setting.lipschitz_bound:g}, "
        f"C_dist = {setting.density_constant:g}, zeta = {setting.zeta:g}"
    )


def budget_table(plans: dict[str, Plan]) -> Table:
    table = Table(title="Exact budgets (worst case, constants included)", title_justify="left")
    table.add_column("")
    for name in ("paper", "Theorem L", "Theorem R"):
        table.add_column(name, justify="right")
    budgets, episodes = [p.budget for p in plans.values()], [p.episodes for p in plans.values()]
    printed, *repaired = plans.values()
    sizes: dict[str, Sequence[float | None]] = {
        "accuracy phi": [b.phi for b in budgets],
        "elimination threshold": [printed.thresholds.printed, *(p.thresholds.sharp for p in repaired)],
        "simulators B": [b.num_simulators for b in budgets],
        "n_dist, per state and simulator": [b.n_dist for b in budgets],
        "n_train, per state and simulator": [b.n_train for b in budgets],
        "n_test, per path and simulator": [budgets[0].n_test, budgets[1].n_test, None],
        "n_1, rollouts per simulator": [budgets[0].n_rollouts, budgets[1].n_rollouts, None],
        "N_2, probes in total": [budgets[0].n_probes, budgets[1].n_probes, None],
        "n_real, per state": [b.n_real for b in budgets],
    }
    drawn: dict[str, Sequence[int | None]] = {
        "simulator episodes, densities": [e.sim_density for e in episodes],
        "simulator episodes, elimination": [e.sim_learning for e in episodes],
        "simulator episodes, loop": [episodes[0].sim_loop, episodes[1].sim_loop, None],
        "[bold]real episodes, every path (HSA)": [e.real_paths for e in episodes],
        "[bold]real episodes, one path a state (HS)": [e.real_states for e in episodes],
        "[bold]real episodes, path cover (w)": [e.real_cover for e in episodes],
    }
    for rows in (sizes, drawn):
        for name, values in rows.items():
            table.add_row(name, *(number(value) for value in values))
        table.add_section()
    table.caption = "\n".join(notes(plans)) or None
    return table


def notes(plans: dict[str, Plan]) -> list[str]:
    """What a reader of the table must know."""
    found = []
    outside = ", ".join(name for name, plan in plans.items() if not plan.in_range)
    if outside:
        found.append(f"Outside the assumptions: {outside}. Computed, but nothing is promised.")
    for name, plan in plans.items():
        if plan.budget.n_real < plan.n_real_floor:
            found.append(f"n_real of {name} is no advice: the density bound needs {number(plan.n_real_floor)} or more.")
    return found


def order_table(setting: Setting) -> Table:
    table = Table(title="Real-world orders, without constants", title_justify="left")
    table.add_column("")
    table.add_column("order", justify="right")
    orders = leading_orders(setting)
    for name in ("real_as_stated", "real", "real_cover", "real_sweep", *WITH_REWARD):
        table.add_row(NAMES[name], number(getattr(orders, name)))
    return table


def rival_table(setting: Setting) -> Table:
    """What learning from rewards of the real world asks for, constants included, by the rivals' own theorems."""
    table = Table(title="Real-world episodes with reward (worst case, constants included)", title_justify="left")
    table.add_column("")
    for name in ("phi", "rounds", "per round or state", "in all"):
        table.add_column(name, justify="right")
    sizes = rival_sizes(setting)
    table.add_row(
        "LSVEE (Krishnamurthy 2016), one pass",
        *map(number, (sizes.lsvee.phi, None, sizes.lsvee.n_train, sizes.lsvee.total)),
    )
    for name, method in (("OLIVE (Jiang 2017)", sizes.olive), ("Sun 2019", sizes.sun)):
        spent = method.n_test + method.n_learn
        table.add_row(name, *map(number, (method.phi, math.ceil(method.rounds), spent, method.total)))
    table.caption = "Ranks are at most max |S_h|. Constants of the first two are re-derived."
    return table


def crossing_table(setting: Setting, curves: Curves) -> Table:
    table = Table(title="Where curves cross in epsilon", title_justify="left")
    for name in ("cheaper below", "cheaper above"):
        table.add_column(name)
    table.add_column("epsilon", justify="right")
    for crossing in crossings(setting):
        where = f"{crossing.epsilon:.3g}" if crossing.epsilon <= 1 else "> 1, never reached"
        table.add_row(NAMES[crossing.cheaper_below], NAMES[crossing.cheaper_above], where)
    exact = exact_crossings(curves)
    for below, above, epsilon in exact:
        table.add_row(f"{NAMES[below]} (exact)", f"{NAMES[above]} (exact)", f"{epsilon:.3g}")
    if not exact:
        table.caption = "Rows are orders. The exact budgets do not cross in the range of the figure."
    return table


def simulators_for(setting: Setting, spread: float) -> int:
    return certification_simulators(setting.epsilon, setting.delta, spread)


def certification_table(setting: Setting) -> Table:
    """What `practical` runs promise instead: a certificate from fresh simulators."""
    sure = f"{1 - setting.delta:.0%} sure"
    title = f"In practice: a certified value within {setting.epsilon:g} of the measured mean, {sure}"
    table = Table(title=title, title_justify="left")
    table.add_column("spread of values over simulators")
    table.add_column("fresh simulators", justify="right")
    for spread in SPREADS:
        largest = " (the largest possible)" if spread == 0.5 else ""
        table.add_row(f"{spread:g}{largest}", number(simulators_for(setting, spread)))
    table.caption = "A forecast. The certificate assumes i.i.d. theta only, and needs no real-world episode."
    return table


def number(value: float | int | None) -> str:
    """Short, and safe for integers beyond a float."""
    if value is None:
        return "-"
    if isinstance(value, int) and value < 10**6:
        return f"{value:,}".replace(",", " ")
    return f"{Decimal(value):.2e}".replace("e+", "e")
