"""How many simulators and episodes do I need?

s2r-plan                                   a table, and the figure plan.png
s2r-plan horizon=5 num_actions=4 epsilon=0.05 figure=runs/my_plan.png
s2r-plan json=true figure=null             JSON only
s2r-plan policy=checkpoints/grid.safetensors epsilon=0.02    how many real episodes does this policy need?
s2r-plan +experiment=grid step_seconds=0.001    how many steps and hours will this run of run.py take?
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from s2r_torch.commands.configuration import plain_config, script
from s2r_torch.errors import S2RError, SettingError
from s2r_torch.files.whole import replacing
from s2r_torch.planner.comparators import rival_sizes
from s2r_torch.planner.curves import Curves, exact_crossings, log_range, real_world_curves
from s2r_torch.planner.looking import Looking, looking_of
from s2r_torch.planner.orders import crossings, leading_orders
from s2r_torch.planner.schedules import Plan, Setting, loops, paper, sweep
from s2r_torch.planner.settings import PlanSettings
from s2r_torch.reports.endings import terminal
from s2r_torch.reports.help import settings_help, words_of
from s2r_torch.reports.plan_tables import SPREADS, answer, show, simulators_for
from s2r_torch.schema import build, defaults
from s2r_torch.text import printable


def run(cfg: DictConfig, folder: Path, console: Console) -> None:
    asked = build(PlanSettings, plain_config(cfg))
    setting, path = asked.setting, asked.figure
    measured = None if asked.policy is None else measured_of(asked.policy)
    if asked.policy is not None and not asked.json:  # what theorems ask of another problem is no answer
        return terminal().print(answer(asked.policy, measured, setting.epsilon), highlight=False, markup=False)
    with sizes_of(asked):
        plans = {plan.__name__: plan(setting, check_range=asked.check_range) for plan in (paper, loops, sweep)}
        curves = real_world_curves(setting, log_range(*asked.epsilon_range, asked.epsilon_points))
        data = as_data(setting, plans, curves, path) | {"looking": measured and asdict(measured)}
        if path is not None:
            save(path, setting, curves)
        if asked.json:
            print(json.dumps(data, allow_nan=False))
        else:
            show(terminal(), setting, plans, curves, path)


def save(path: str, setting: Setting, curves: Curves) -> None:
    """Draws the figure and writes it."""
    from s2r_torch.reports.plan_figure import draw  # matplotlib, for those who want the figure
    from s2r_torch.reports.style import plain_look

    with plain_look(), replacing(path) as partial:
        draw(setting, curves).savefig(partial, dpi=160)


@contextmanager
def sizes_of(asked: PlanSettings) -> Iterator[None]:
    """Sizes that no float holds, wherever they come up, are one error about what was asked."""
    try:
        yield
    except S2RError:
        raise
    except (ArithmeticError, ValueError) as error:  # ValueError: JSON has no infinity
        usual = asdict(PlanSettings().setting)
        unusual = [f"{key} = {value}" for key, value in asdict(asked.setting).items() if value != usual[key]]
        raise SettingError(
            expected="settings whose sizes are numbers up to 1e308",
            got=printable(", ".join(unusual) or error),
            cause="a number that is far too small or too large for any budget",
        ) from error


def measured_of(policy: str) -> Looking | None:
    """The curve of value against real episodes that a policy file holds."""
    from s2r_torch.deployment.policy_file import read  # torch, for those who ask about a file

    return looking_of(read(Path(policy).expanduser())[0]["notes"], policy)


def as_data(setting: Setting, plans: dict[str, Plan], curves: Curves, path: str | None) -> dict:
    """Everything the table and the figure show, and more, as plain data; integers are exact."""
    return {
        "setting": asdict(setting),
        "plans": {name: asdict(plan) for name, plan in plans.items()},
        "orders": asdict(leading_orders(setting)),
        "rivals": asdict(rival_sizes(setting)),
        "curves": asdict(curves),
        "crossings": {
            "exact": [
                {"cheaper_below": below, "cheaper_above": above, "epsilon": epsilon}
                for below, above, epsilon in exact_crossings(curves)
            ],
            "orders": [asdict(crossing) for crossing in crossings(setting)],
        },
        "certification": {str(spread): simulators_for(setting, spread) for spread in SPREADS},
        "figure": path,
    }


def about() -> str:
    return "\n".join([words_of(__doc__), "", *settings_help(PlanSettings)])


def forecast(cfg: DictConfig, folder: Path, console: Console) -> None:
    """What a run would ask of its simulators; imports what a run imports."""
    from s2r_torch.reports.forecast_table import forecast_json, forecast_table
    from s2r_torch.runs.configuring import configured
    from s2r_torch.runs.forecast import ForecastSettings
    from s2r_torch.runs.forecast import forecast as forecast_of

    config = plain_config(cfg)
    told = build(ForecastSettings, {key: config.pop(key) for key in defaults(ForecastSettings)})
    found = forecast_of(*configured(config))
    if told.json:
        print(json.dumps(forecast_json(found, told), allow_nan=False))
    else:
        terminal().print(forecast_table(found, told))


def about_forecasts() -> str:
    from s2r_torch.runs.forecast import ForecastSettings

    own = "Settings are those of run.py, and:"
    return "\n".join([words_of(__doc__), "", own, *settings_help(ForecastSettings)])


def nothing(cfg: DictConfig, folder: Path) -> str:
    return "nothing is kept"


def asks_about_a_run(arguments: list[str]) -> bool:
    """Whether a command line names a run, or what a step of one takes."""
    return any(argument.startswith(("+experiment=", "env=", "step_seconds=")) for argument in arguments)


def main() -> None:
    console = terminal(stderr=True)  # stdout is for the answer alone
    if asks_about_a_run(sys.argv[1:]):
        script("forecast", forecast, kept=nothing, about=about_forecasts, console=console)
    else:
        script("plan", run, kept=nothing, about=about, console=console)
