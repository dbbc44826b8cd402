"""A deployment from its settings: the policy, what was seen before, the world, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from s2r_torch.base import UnlabelledWorld
from s2r_torch.coverage import Walks
from s2r_torch.defaults import plain_torch
from s2r_torch.deployment.collection import missing_episodes
from s2r_torch.deployment.deploy import deploy, deploy_recorded
from s2r_torch.deployment.live import bounded, closing
from s2r_torch.deployment.logbook import Logbook, looked_before, open_logbook, read_log
from s2r_torch.deployment.outcome import Deployment
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.policy_file import PolicyFile, load_policy_file
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.files import require_empty_form
from s2r_torch.errors import CheckpointError, FileError, S2RError, SettingError, SimulatorError, UnlikeSimulatorsError
from s2r_torch.families import FAMILIES, exact, make_family
from s2r_torch.families.contract import Family
from s2r_torch.graph import Path as Actions
from s2r_torch.graph import spelt
from s2r_torch.registry import import_namesake, import_of_users, import_plugins, search_working_folder
from s2r_torch.rng import Seed
from s2r_torch.runs.deploy_settings import DeploySettings, FamilyWorld, LiveWorld, RecordedWorld
from s2r_torch.text import printable


@dataclass(frozen=True, eq=False)
class Site:
    """Where a policy is about to be deployed.

    Args:
        settings: what was asked for.
        file: what is deployed, and what was promised of it.
        seen: episodes that are there already.
        missing: those still to be collected.
        logbook: where those of a live world go.
        looked_before: whether the number of those seen may depend on what they showed.
    """

    settings: DeploySettings
    file: PolicyFile
    seen: Recording
    missing: Walks
    logbook: Logbook | None
    looked_before: bool

    @property
    def policy(self) -> MetaPolicy:
        """What is deployed."""
        return self.file.policy

    @property
    def keeps_nothing(self) -> bool:
        """Whether episodes of a live world are about to be lost."""
        return isinstance(self.settings.world, LiveWorld) and self.logbook is None


@dataclass(frozen=True, eq=False)
class Deployed:
    """What came of it.

    Args:
        deployment: the policy of this world.
        title: which world it is, for people.
        worth: what that policy and the best one earn there, where the family knows.
        not_closed: why the world could not be closed afterwards; what it showed is as good.
    """

    deployment: Deployment
    title: str
    worth: tuple[float, float] | None = None
    not_closed: SimulatorError | None = None


@contextmanager
def site_of(settings: DeploySettings) -> Iterator[Site]:
    """Loads the policy, and what was seen before; holds the log, if there is one.

    Raises:
        CheckpointError, RecordingError, FileError: a file cannot be used.
    """
    import_plugins(settings.plugins)
    if isinstance(settings.world, FamilyWorld) and settings.world.family is not None:
        import_namesake(FAMILIES, settings.world.family)
    file = load_policy_file(Path(settings.checkpoint).expanduser())
    policy = file.policy
    if settings.template:
        require_empty_form(settings.template, policy.spec)
    with _seen_before(settings, file) as (seen, logbook, before):
        missing = missing_episodes(seen, policy.problem.graph, policy.cover, policy.n_real)
        yield Site(settings, file, seen, missing, logbook, before)


@contextmanager
def _seen_before(settings: DeploySettings, file: PolicyFile) -> Iterator[tuple[Recording, Logbook | None, bool]]:
    """Episodes that are there, the log that holds them, and whether they were looked at sequentially."""
    spec, world = file.policy.spec, settings.world
    if isinstance(world, RecordedWorld) and world.file is not None:
        yield read_log(world.file, spec, short_episodes=world.short_episodes), None, looked_before(world.file)
    elif settings.log and settings.collect_only:
        yield read_log(settings.log, spec, short_episodes=True, empty=True), None, looked_before(settings.log)
    elif settings.log:
        with open_logbook(settings.log, spec, _called(settings, file)) as logbook:
            yield logbook.recording, logbook, looked_before(settings.log)
    else:
        yield Recording.empty(spec), None, False


def _called(settings: DeploySettings, file: PolicyFile) -> str:
    """What a ledger calls the world whose episodes it counts."""
    if not isinstance(settings.world, FamilyWorld):
        return "a live world"
    return f"{file.family['name'] if file.family else settings.world.family}, world {settings.world.seed}"


def deploy_at(site: Site) -> Deployed:
    """Deploys: looks at the world, as far as that was not done before, and conditions the policy on what it shows.

    Raises:
        S2RError: the world cannot be used, or is refused; episodes so far are in the log. A refusal's last note says
            what the policy file holds for it.
    """
    try:
        return _deployed(site)
    except UnlikeSimulatorsError as error:
        error.add_note(instead(site.file.fallback, bool(site.file.certificate)))
        raise


def instead(fallback: Actions | None, certified: bool) -> str:
    """What to do in a world that is refused, as far as a policy file says."""
    if fallback is None:
        why = "none was saved with it" if certified else "nothing was certified"
        return f"in a refused world: this file holds no list of actions to follow instead, for {why}"
    return f"in a refused world: follow the actions {spelt(fallback)}, the best fixed list on the simulators"


def _deployed(site: Site) -> Deployed:
    """The deployment in whatever kind of world it is."""
    world = site.settings.world
    if isinstance(world, RecordedWorld):
        return Deployed(_recorded(site, world), str(world.file))
    if isinstance(world, LiveWorld):
        return _in_reality(site, world)
    family, theta, simulated = _simulated(site, world)
    deployment = _live(site, simulated)
    return Deployed(deployment, f"{family.name}, world {world.seed}", _worth(site.policy, deployment, family, theta))


def _in_reality(site: Site, world: LiveWorld) -> Deployed:
    """The deployment in a live world; one that cannot be closed at the end takes nothing away from it."""
    deployment, not_closed = None, None
    try:
        with _connected(world, site) as connected:
            deployment = _live(site, connected, world.time_limit)
    except SimulatorError as error:
        if deployment is None:
            raise
        not_closed = error
    return Deployed(deployment, str(world.make), not_closed=not_closed)


def _recorded(site: Site, world: RecordedWorld) -> Deployment:
    deployment = deploy_recorded(
        site.policy,
        site.seen,
        minimum=world.minimum,
        every_reading=world.every_reading,
        stopping=site.settings.stopping if site.settings.sequential else None,
        refuse=site.settings.refuse,
        check=site.settings.check,
    )
    return replace(deployment, looked_before=site.looked_before)


def _live(site: Site, world: UnlabelledWorld, time_limit: float | None = None) -> Deployment:
    """Deploys in a world that is there; the ledger says how it ended, whatever happens."""
    settings, logbook = site.settings, site.logbook
    run = partial(
        deploy,
        site.policy,
        world,
        stopping=settings.stopping if settings.sequential else None,
        refuse=settings.refuse,
        check=settings.check,
        time_limit=time_limit,
    )
    if logbook is None:
        return run()
    if settings.sequential:
        logbook.note(sequential=True)
    try:
        deployment = run(logbook.ledger, recording=logbook.recording, keep=logbook.append)
    except BaseException as error:
        status = printable(f"{type(error).__name__}: {error}") if isinstance(error, S2RError) else "interrupted"
        with suppress(FileError):  # what went wrong first is what counts
            logbook.note(status=status)
        raise
    logbook.note(status="complete", looks=[asdict(look) for look in deployment.looks])
    return replace(deployment, looked_before=site.looked_before)


# -- worlds ---------------------------------------------------------------------------------------------------------


def _simulated(site: Site, world: FamilyWorld) -> tuple[Family, Tensor, UnlabelledWorld]:
    """A family, theta [k] of this world, and the world, which goes on after the episodes seen before."""
    family = _family_for(site.file, world)
    seed, seen = Seed.root(world.seed).child("deploy"), len(site.seen)
    theta = family.prior(1, seed.child("theta").generator())[0]
    stream = seed.child("world", seen) if seen else seed.child("world")  # never the same episodes again
    return family, theta, family.world(theta, stream.generator())


def _family_for(file: PolicyFile, world: FamilyWorld) -> Family:
    """The policy's own family; what the command line says must not contradict it."""
    name, parameters = world.family, dict(world.parameters)
    trained = file.family or {"name": name, "parameters": parameters}
    if name is not None and trained["name"] != name:
        raise CheckpointError(
            expected=f"world={trained['name']}, which this policy was trained for",
            got=f"world={name}",
            cause="another checkpoint was meant",
        )
    if trained["name"] is None:
        raise SettingError(
            expected="world.family=...", got="nothing", cause="a policy that was saved without its family"
        )
    for key, value in parameters.items():
        if key not in trained["parameters"] or trained["parameters"][key] != value:
            raise CheckpointError(
                expected=f"{key}={trained['parameters'].get(key)}, as this policy was trained with",
                got=f"world.parameters.{key}={value}",
                cause="family parameters come from the checkpoint; leave them out",
            )
    return make_family(trained["name"], **trained["parameters"])


@contextmanager
def _connected(world: LiveWorld, site: Site) -> Iterator[UnlabelledWorld]:
    """What the function world.make returns, closed at the end; its seed is another one after episodes seen before."""
    from s2r_torch.families.gym.world import as_world  # Gymnasium is imported for this only

    connect = _function_named(str(world.make))
    try:
        with plain_torch():
            made = bounded(lambda: connect(**world.arguments), world.time_limit)
    except (S2RError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise SettingError(
            expected=f"a world from {printable(world.make)}",
            got=f"{type(error).__name__}: {printable(error)}",
            cause="a fault in that function, or wrong world.arguments",
        ) from error
    seed, seen = world.seed, len(site.seen)
    if seed is not None and seen:  # never the same episodes again
        seed = Seed.root(seed).child("world", seen).integer() % 2**31
    with closing(made, world.time_limit):
        yield as_world(made, site.policy.spec, seed, site.policy.problem.graph)


def _function_named(name: str) -> Callable[..., object]:
    """The function that `module:function` names, on the command line only; the working folder is searched, too."""
    module, _, function = name.partition(":")
    search_working_folder()
    try:
        with plain_torch():
            return getattr(import_of_users(module), function)
    except (S2RError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise SettingError(
            expected="world.make=module:function",
            got=f"{printable(name)} ({type(error).__name__}: {printable(error)})",
            cause="a typo, or a module that is neither installed nor in the working folder",
        ) from error


def _worth(policy: MetaPolicy, deployment: Deployment, family: Family, theta: Tensor) -> tuple[float, float] | None:
    """What the policy and the best one earn in a simulated world, where the family knows."""
    truth = family.truth(theta[None])
    if truth is None:
        return None
    value = exact.policy_values(truth, policy.condition(deployment.D_real[None], deployment.used).act)[0, 0]
    return float(value), float(exact.optimal(truth)[0][0, 0])
