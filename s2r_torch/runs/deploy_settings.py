"""The settings of a deployment, as `scripts/deploy.py` takes them: checked before anything is loaded or drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from s2r_torch.deployment import export
from s2r_torch.deployment.edges import CHECKS
from s2r_torch.deployment.recording.tables import check_ending
from s2r_torch.deployment.stopping import Stopping
from s2r_torch.errors import SettingError
from s2r_torch.files.whole import probe, real_path
from s2r_torch.schema import OneOf, Positive, Settings, Size, build, defaults
from s2r_torch.text import printable


@dataclass(frozen=True)
class FamilyWorld(Settings):
    """A simulated world of a registered family.

    Args:
        family: its name; null for the policy's own.
        seed: of theta and of what the world shows.
        parameters: of the family; they come from the policy file, and must not contradict it.
    """

    family: str | None = None
    seed: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LiveWorld(Settings):
    """A Gymnasium environment, or a world of one's own.

    Args:
        make: module:function; it returns a gymnasium.Env or a base.UnlabelledWorld.
        arguments: keyword arguments of that function.
        seed: of an environment's first reset; null leaves its randomness alone.
        time_limit: seconds that making, resetting, stepping or closing it may take; null for any time.
    """

    make: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    time_limit: Positive | None = None


@dataclass(frozen=True)
class RecordedWorld(Settings):
    """Episodes that were logged before.

    Args:
        file: CSV, NPZ or Parquet.
        short_episodes: accept interrupted episodes, and use the readings that they have.
        minimum: readings that every state must have; null for a quarter of n_real.
        every_reading: use those beyond n_real, too.
    """

    file: str | None = None
    short_episodes: bool = False
    minimum: Size | None = None
    every_reading: bool = False


World = FamilyWorld | LiveWorld | RecordedWorld
WORLDS: dict[str, type[World]] = {"family": FamilyWorld, "gym": LiveWorld, "recorded": RecordedWorld}


@dataclass(frozen=True)
class DeploySettings(Settings):
    """What is deployed where, and what is kept of it.

    Args:
        checkpoint: a policy file.
        world: where.
        plugins: modules that register what the policy file names, where it is the user's own.
        collect_only: say what is to be collected, and stop.
        template: write the episodes to be collected into this file, readings empty; null for no file.
        log: keep a live world's episodes in this file; null keeps none.
        refuse: whether a world that is not like the simulators is an error.
        check: `cover` compares what the cover passes; `edges` also those edges that the policy takes in this world and
            the cover leaves out, by further episodes; `auto` does so where they are no more than those of the cover.
        sequential: look in several goes, and stop as soon as further episodes could not change what is done.
        stopping: of a sequential deployment.
        export: write the conditioned policy to this file; null for no file.
    """

    checkpoint: str
    world: FamilyWorld | LiveWorld | RecordedWorld
    plugins: tuple[str, ...] = ()
    collect_only: bool = False
    template: str | None = None
    log: str | None = None
    refuse: bool = True
    check: Annotated[str, OneOf(CHECKS)] = "auto"
    sequential: bool = False
    stopping: Stopping = field(default_factory=Stopping)
    export: str | None = None

    def check_rules(self) -> None:
        """Refuses contradictions, and files that can never be written.

        Raises:
            SettingError: a setting is missing, or two contradict each other.
            FileError: a file that would be written at the end cannot be.
        """
        for key in ("make", "file"):
            if not self.collect_only and getattr(self.world, key, "") is None:
                raise SettingError(expected=f"world.{key}=...", got="nothing", cause="a setting that has no default")
        if self.log and isinstance(self.world, RecordedWorld):
            raise SettingError(
                expected="log=... with a live world", got="world=recorded", cause="recorded episodes are in world.file"
            )
        endings = {"log": check_ending, "template": check_ending, "export": export.check_ending}
        if isinstance(self.world, RecordedWorld) and self.world.file is not None:
            check_ending(self.world.file)
        for key, ending in endings.items():
            if getattr(self, key):
                ending(getattr(self, key))
        self._require_different_files()
        for key in endings:
            if getattr(self, key):
                probe(getattr(self, key))

    def _require_different_files(self) -> None:
        named = {key: getattr(self, key) for key in ("checkpoint", "log", "template", "export")}
        named["world.file"] = getattr(self.world, "file", None)
        taken: dict[Path, str] = {}
        for key, path in named.items():
            other = taken.setdefault(real_path(path), key) if path else key
            if other != key:
                raise SettingError(
                    expected=f"{other} and {key} in different files",
                    got=printable(path),
                    cause="one would overwrite the other",
                )


def world_defaults(name: str) -> dict[str, Any]:
    """Plain values of a world: one of `WORLDS`, or a simulated one of the family of that name."""
    kind = name if name in WORLDS else "family"
    return {"kind": kind, **defaults(WORLDS[kind]), **({} if name in WORLDS else {"family": name})}


def deploy_settings(values: Mapping[str, Any]) -> DeploySettings:
    """The settings from a composed configuration.

    Raises:
        SettingError: an unknown key, a value of the wrong type or out of range, or a contradiction.
        FileError: a file that can never be written.
    """
    world = dict(values.get("world") or {})
    kind = world.pop("kind", None)
    if kind not in WORLDS:
        raise SettingError(
            expected=f"world.kind: one of {', '.join(WORLDS)}",
            got=printable(repr(kind)),
            cause="a file of world/ that is not for deployments",
        )
    return build(DeploySettings, {**values, "world": build(WORLDS[kind], world, "world")})
