"""What `plan.py` prints of a run that has not begun: episodes, steps and hours, stage by stage."""

from __future__ import annotations

from rich.table import Table

from s2r_torch.runs.forecast import Forecast, ForecastSettings, Part

NOT_COUNTED = "evaluate"  # belongs to nobody's method, as in the table of a run


def forecast_table(found: Forecast, told: ForecastSettings) -> Table:
    """One row per stage, and one for all of them."""
    graph = found.graph
    states = f"{graph.num_states} states in {graph.horizon} layers {graph.states_per_layer}"
    kind = "" if found.known else ", the most that the family allows: it does not know its graph"
    if found.looked_at.pruned:
        kind = f", {found.looked_at.num_states} of them on good lists of actions"
    view = Table(title=f"Forecast, {told.step_seconds:g} s a step: {states}{kind}", title_justify="left")
    for name in ("stage", "episodes", "steps", *(f"hours, {n} worker{'s' * (n > 1)}" for n in told.workers)):
        view.add_column(name, justify="left" if name == "stage" else "right")
    for stage in dict.fromkeys(part.stage for part in found.parts):
        view.add_row(stage, *_cells([part for part in found.parts if part.stage == stage], told))
    view.add_section()
    view.add_row("in all", *_cells(list(found.parts), told))
    without = [part for part in found.parts if part.purpose != NOT_COUNTED]
    view.add_row("without evaluate", *_cells(without, told))
    view.caption = (
        "Simulators run side by side, each on one worker. Learn-on-Simulators is taken to accept at once, the "
        "appraisal to look once and to find no policy that falls short, which is learned again; what comparators draw "
        "in worlds is left out."
    )
    return view


def forecast_json(found: Forecast, told: ForecastSettings) -> dict:
    """The same as plain data, part by part."""
    return {
        "states_per_layer": found.graph.states_per_layer,
        "graph_known": found.known,
        "states_looked_at": found.looked_at.num_states,
        "parts": [
            {
                "stage": part.stage,
                "purpose": part.purpose,
                "simulators": part.simulators,
                "episodes": part.episodes,
                "steps": part.steps,
                "hours": {str(n): part.hours(told, n) for n in told.workers},
            }
            for part in found.parts
        ],
    }


def _cells(parts: list[Part], told: ForecastSettings) -> list[str]:
    hours = (sum(part.hours(told, n) for part in parts) for n in told.workers)
    counts = (sum(part.episodes for part in parts), sum(part.steps for part in parts))
    return [*(f"{count:,}" for count in counts), *(f"{value:.2f}" for value in hours)]
