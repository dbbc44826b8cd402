"""Configurations of the commands: Hydra is known here alone.

Every key of a command's settings is there from the start, with the default of its dataclass (`defaults/run`), and its
records are open: whatever a command line says reaches `s2r_torch.schema`, which knows the types and says what is wrong.
`net=NAME`, `env=NAME` and `world=NAME` need no file: any name makes a configuration, and the registries say whether it
is known. Settings and registries are imported when a configuration asks for them: no command waits for another's.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, cast

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from yaml import ScalarToken, YAMLError, scan  # type: ignore[import-untyped]

from s2r_torch.commands.arguments import require_one_of_each, said_twice, settings_first, with_home
from s2r_torch.errors import S2RError, SettingError
from s2r_torch.reports.endings import Ended, clear_ending, say, terminal
from s2r_torch.schema import defaults, typo
from s2r_torch.text import NAME, printable

PACKAGE = Path(__file__).resolve().parent.parent
SHIPPED = PACKAGE / "conf"  # of a wheel, which has a clone's conf/ (setup.py)
CONF = SHIPPED if SHIPPED.is_dir() else PACKAGE.parent / "conf"
SHARED = CONF / "run"  # experiments and settings of a run, for every command that makes runs
NAMED = ("env", "net", "world", "encoder")  # groups whose options need no file
NOT_DECIMAL = r"[-+]?(0([0-7_]+|x[0-9a-fA-F_]+|b[01_]+)|[1-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)"  # of YAML 1.1
SHOWN = r"-c(?![pnd])|--cf|-i|--in"  # --cfg and --info of Hydra: a configuration is shown, and nothing is done


def options(group: str) -> list[str]:
    """The names that a group knows of; plugins add theirs later."""
    from s2r_torch.encoders import ENCODERS
    from s2r_torch.families import FAMILIES
    from s2r_torch.predictors.registry import NETS
    from s2r_torch.runs.deploy_settings import WORLDS

    known = {"env": [*FAMILIES], "net": [*NETS], "world": [*WORLDS, *FAMILIES], "encoder": [*ENCODERS]}
    return sorted(known[group])


def run_defaults() -> dict[str, Any]:
    """Every setting of a run with its default; families and networks have their own."""
    from s2r_torch.runs.settings import RunSettings

    values = {key: value for key, value in defaults(RunSettings).items() if key != "nets"}
    return {**values, "plugins": [], "env": {}}


def compare_defaults() -> dict[str, Any]:
    from s2r_torch.runs.settings import ComparisonSettings

    return {"compare": defaults(ComparisonSettings)}


def plan_defaults() -> dict[str, Any]:
    from s2r_torch.planner.settings import PlanSettings

    return defaults(PlanSettings)


def forecast_defaults() -> dict[str, Any]:
    from s2r_torch.runs.forecast import ForecastSettings

    return {**run_defaults(), **defaults(ForecastSettings)}


def deploy_defaults() -> dict[str, Any]:
    from s2r_torch.runs.deploy_settings import DeploySettings

    return {"checkpoint": "???", **defaults(DeploySettings)}


def world_defaults(name: str) -> dict[str, Any]:
    from s2r_torch.runs import deploy_settings

    return deploy_settings.world_defaults(name)


DEFAULTS = {
    "run": run_defaults,
    "compare": compare_defaults,
    "plan": plan_defaults,
    "forecast": forecast_defaults,
    "deploy": deploy_defaults,
}


def open_records(values: dict[str, Any]) -> DictConfig:
    """Settings whose records take any key: the schema says later which ones there are, and what may be in them."""
    config = OmegaConf.create(values)
    for key in config:
        if not OmegaConf.is_missing(config, key) and OmegaConf.is_dict(config[key]):
            OmegaConf.set_struct(config[key], False)
    return config


class Names(ConfigSource):
    """Configurations that are made of a name: `env/grid`, `net/peaks`, `defaults/run`."""

    @staticmethod
    def scheme() -> str:
        return "names"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in NAMED

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.removesuffix(".yaml").strip("/").rpartition("/")
        return (group == "defaults" and name in DEFAULTS) or (group in NAMED and NAME.fullmatch(name) is not None)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        group = config_path.strip("/")
        return options(group) if group in NAMED and results_filter != ObjectType.GROUP else []

    def load_config(self, config_path: str) -> ConfigResult:
        if not self.is_config(config_path):
            raise ConfigLoadError(f"no configuration {config_path}")
        group, _, name = config_path.removesuffix(".yaml").strip("/").rpartition("/")
        if group == "defaults":
            package, config = "_global_", open_records(DEFAULTS[name]())
        elif group in ("env", "encoder"):
            package, config = "_global_", open_records({group: {"name": name}})
        elif group == "world":
            package, config = "world", OmegaConf.create(world_defaults(name), flags={"struct": False})
        else:  # `net` itself takes no further networks: net.conv.width=64 is no way to have conv in the class
            package, config = f"net.{name}", OmegaConf.create({}, flags={"struct": False})
        return ConfigResult("names", self.full_path(), config, {"package": package})


class Yours(FileConfigSource):
    """A user's files. An editor's mark (BOM) may begin them, behind which Hydra would not find `# @package`."""

    @staticmethod
    def scheme() -> str:
        return "yours"

    def load_config(self, config_path: str) -> ConfigResult:
        found = super().load_config(config_path)
        text = Path(self.path, self._normalize_file_name(config_path)).read_text(encoding="utf-8-sig")
        found.header = self._get_header_dict(text)
        return found


class Places(SearchPathPlugin):
    """Where configurations are looked for, beside the command's own folder: a user's come after those that ship."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("shared", f"file://{SHARED}")
        search_path.append("yours", f"yours://{Path.cwd() / 'conf'}")
        search_path.append("yours", f"yours://{Path.cwd()}")
        search_path.append("names", "names://")


def part_of_path(value: object) -> str:
    """A setting as part of a folder's name, before its type was looked at; a wrong one is refused in that folder."""
    return re.sub(r"[^\w.-]", "_", str(value))[:60].lstrip(".")


@cache
def folder_of_its_own(wanted: str) -> str:
    """Makes the folder of that name for this process alone, or where there is one already, one with a number behind it.

    Names end with the second in which a command was started: of two started in the same one, each gets its own. Hydra
    asks again for every job of a sweep, and is told the same. Where a configuration is only shown, nothing is made.
    """
    if any(re.match(SHOWN, argument) for argument in sys.argv[1:]):
        return wanted
    for number in count(1):
        folder = Path(wanted if number == 1 else f"{wanted}-run{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # Hydra makes it, too, and its error is told
            break
        return str(folder)
    return wanted


Plugins.instance().register(Names)
Plugins.instance().register(Yours)
Plugins.instance().register(Places)
OmegaConf.register_new_resolver("part", part_of_path, replace=True)
OmegaConf.register_new_resolver("own", folder_of_its_own, replace=True)


# -- scripts ---------------------------------------------------------------------------------------------------------

Job = Callable[[DictConfig, Path, Console], None]


def script(
    name: str, job: Job, *, kept: Callable[[DictConfig, Path], str], about: Callable[[], str], console: Console
) -> None:
    """Runs a command from its command line to its end, whatever that is (`reports.endings`).

    One of several jobs (`-m`) that fails does not end the others; failures are listed at the end, and the code is 2.

    Args:
        name: of the configuration, conf/NAME/NAME.yaml.
        job: what is done with one configuration, in its folder.
        kept: what an interruption leaves, in words.
        about: what --help says.
        console: where everything is printed.
    """
    failed: list[str] = []

    def one(cfg: DictConfig) -> None:
        hydra_says = HydraConfig.get()
        folder = Path(hydra_says.runtime.output_dir)
        try:
            with clear_ending(console, "nothing was begun"), our_errors():
                left = kept(cfg, folder)  # which may ask for a setting that leads nowhere
            with clear_ending(console, left):
                require_one_of_each(task_overrides())
                require_decimal_numbers(hydra_says)
                for sentence in said_twice(task_overrides()):
                    say(terminal(stderr=True), sentence)
                job(cfg, folder, console)
        except Ended as ended:
            if hydra_says.mode != RunMode.MULTIRUN or ended.code != 2:
                raise
            failed.append(" ".join(task_overrides()))

    with clear_ending(console, "nothing was begun", exits=True):
        if {"--help", "-h"} & set(sys.argv[1:]):
            say(console, about())
            return
        arguments = [with_home(argument) for argument in sys.argv[1:]]
        sys.argv = [sys.argv[0], *settings_first(arguments, get_args_parser())]
        os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors come here, and are told like all others
        with our_errors():
            hydra.main(version_base="1.3", config_path=str(CONF / name), config_name=name)(one)()
        if failed:
            say(console, f"{len(failed)} of these jobs failed, as said above:")
            for overrides in failed:
                say(console, f"    {printable(overrides)}")
            raise Ended(2)


def require_decimal_numbers(hydra_says: HydraConf) -> None:
    """Raises SettingError for numbers in files that YAML reads in another base: 1:40 and 0x64 are 100, 0100 is 64."""
    for path in _files(hydra_says):
        for token in scan(path.read_text(encoding="utf-8")):
            if isinstance(token, ScalarToken) and token.plain and re.fullmatch(NOT_DECIMAL, token.value):
                raise SettingError(
                    expected="decimal numbers",
                    got=printable(f"{token.value} at line {token.start_mark.line + 1} of {path}"),
                    cause="YAML counts in 60 at a colon, and in 8, 16 or 2 after a leading 0; in quotes it is text",
                )


def _files(hydra_says: HydraConf) -> list[Path]:
    """Those that a configuration was put together from."""
    chosen = [hydra_says.job.config_name]
    for group, names in hydra_says.runtime.choices.items():
        chosen += [f"{group.partition('@')[0]}/{name}" for name in ([names] if isinstance(names, str) else names or ())]
    folders = [source.path for source in hydra_says.runtime.config_sources if source.schema in ("file", "yours")]
    paths = [Path(folder, f"{name}.yaml") for folder in folders for name in chosen]
    return [path for path in paths if os.path.isfile(path)]  # False, too, for names that no file can have


def composed(overrides: list[str]) -> DictConfig:
    """Another configuration of a run, within a command.

    Raises:
        SettingError: it cannot be put together.
    """
    with our_errors():
        cfg = hydra.compose("run", overrides, return_hydra_config=True)
    require_decimal_numbers(cfg.hydra)
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])


def task_overrides() -> list[str]:
    """What the command line changes, within a command, as it was written: `seed=${...}` is not looked up."""
    return cast(list[str], OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False))


@contextmanager
def our_errors() -> Iterator[None]:
    """What Hydra refuses becomes a SettingError."""
    try:
        yield
    except S2RError:
        raise
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1} of {mark.name}" if mark else ""
        raise SettingError(
            expected="a configuration in YAML",
            got=printable(f"{getattr(error, 'problem', None) or error}{where}"),
            cause="a tab, a key that is there twice, or another slip of indentation",
        ) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: net=null
        raise as_setting_error(error) from error
    except TypeError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals.get("__name__", "").startswith("hydra."):
            raise
        cause = "a list, or another value, for a group, which is a folder of configurations and needs a name"
        raise SettingError(expected="settings that can be put together", got=printable(error), cause=cause) from error


def as_setting_error(error: Exception) -> SettingError:
    """What Hydra refused, in our words."""
    beyond = r"Config search path|See https?:|To append to your config|full_key|Set the environment"
    text = " ".join(re.split(beyond, str(error) or str(error.__cause__))[0].split())
    cause = "a typo on the command line or in a configuration"
    if isinstance(error, OverrideParseException):
        return _unparsed(text, error.override)
    key = re.match(r"Could not override '([^']+)'", text)
    if key and key[1].startswith("net."):
        _, network, *rest = key[1].split(".")
        cause = f"net={network} was not given" if rest else f"a setting without its network: net.NETWORK.{network}"
    elif isinstance(error, UnicodeDecodeError):
        text = f"{text}, in {', '.join(_not_utf8()) or 'a configuration'}"
        cause = "a file that is not UTF-8: a letter with an accent, as an older editor writes it"
    elif key and key[1] in {known for make in DEFAULTS.values() for known in make()}:
        cause = "a setting that is not one of this command's, or not together with the others"
    elif key and "." not in key[1]:
        cause = typo(key[1], ["net", *(known for make in DEFAULTS.values() for known in make())])
    elif "Config group override must be" in text:
        cause = "null for a group such as env, net or world, which needs a name"
    elif "Ambiguous value" in text:
        text = text.split(" 1. To use")[0]
        cause = "a decimal comma, where a point is meant; a list without brackets; or a comma in a name: 'key=\"a,b\"'"
    elif "Interpolation key" in text:
        cause += "; --cfg hydra knows Hydra's own part alone: --cfg all"
    return SettingError(expected="settings that can be put together", got=text, cause=cause)


def _unparsed(text: str, override: str) -> SettingError:
    """A setting that Hydra's grammar does not take."""
    key, is_one, value = override.partition("=")
    cause = f"a character that means something to Hydra; in quotes it does not: '{key}=\"{value}\"'"
    if not is_one:
        cause = "a value without its key, or a blank beside the ="
    elif value.startswith("~"):
        cause = "a tilde, which Hydra's grammar does not know; write $HOME"
    return SettingError(
        expected="a setting KEY=VALUE", got=printable(f"{override!r}: {text}", 300), cause=printable(cause, 200)
    )


def _not_utf8() -> list[str]:
    """The user's configurations that are no UTF-8."""
    found = []
    for folder in (Path.cwd() / "conf", Path.cwd()):
        for path in filter(os.path.isfile, sorted((*folder.glob("*.yaml"), *folder.glob("*/*.yaml")))):
            try:
                path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                found.append(printable(path.relative_to(Path.cwd())))
    return found


def plain_config(cfg: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values.

    Raises:
        SettingError: an interpolation that leads nowhere.
    """
    with our_errors():
        config = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    if "experiment" in config:
        inside = config["experiment"]
        keys = f"keys below 'experiment': {', '.join(inside)}" if isinstance(inside, dict) else f"{inside} in it"
        raise SettingError(
            expected="an experiment with settings KEY: VALUE, whose first line is '# @package _global_'",
            got=printable(keys, 100),
            cause="that line is missing, is not the first one, or a mark (BOM) that an editor put before it",
        )
    return config
