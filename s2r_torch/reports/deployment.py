"""What a terminal shows of a deployment: what to collect, what it rests on, and what is promised.

Names and messages of files and worlds are printed as they are (`text.printable`), never as markup.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from s2r_torch.deployment.edges import NO_CHECK, most_walks
from s2r_torch.deployment.likeness import CONSISTENT, DOUBTFUL, REFUSED, UNTESTED
from s2r_torch.deployment.outcome import Deployment, span
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.graph import spelt
from s2r_torch.runs.deploying import Deployed, Site
from s2r_torch.text import printable

MOST = 1000  # characters of a line
EDGES_ON_TOP = (
    "\n\nEdges were compared, too, which the rehearsals did not do: at most 1 % more of the worlds like the\n"
    "simulators are refused by that. Where refused worlds earn nothing, take 0.01 off line 1."
)


def to_collect(site: Site) -> RenderableType:
    """What is still to be collected: action sequences, and how often each."""
    spec, total = site.policy.spec, sum(count for _, count in site.missing)
    lines: list[RenderableType] = [Text(printable(note, MOST)) for note in (site.logbook.notes if site.logbook else [])]
    if len(site.seen):
        readings = span(site.seen.counts(site.policy.problem.graph))
        lines.append(Text(f"seen so far: {len(site.seen)} episodes, {readings} readings per state"))
    if not total:
        return Group(*lines, Text("nothing more to collect"))
    names = printable(", ".join(spec.obs_names))
    view = Table()
    view.add_column("episodes", justify="right")
    view.add_column("actions", overflow="fold")
    for actions, count in site.missing:
        view.add_row(str(count), Text(spelt(actions)))
    told = Text(f"to collect: {total} episodes, {names} at each of {spec.horizon} steps; no reward")
    more = most_walks(site.policy, site.settings.check)
    then = f"then at most {more} more, along edges that the policy turns out to take here (check={site.settings.check})"
    return Group(*lines, told, view, *([Text(then)] if more else []))


def report(policy: MetaPolicy, deployed: Deployed) -> Table:
    """What was spent, what it rests on, and what must be known of it."""
    deployment = deployed.deployment
    view = Table(title=Text(printable(deployed.title)), title_justify="left", show_header=False)
    view.add_column()
    view.add_column(overflow="fold")  # names of sensors are long, and no letter of them is lost

    def row(name: str, text: str) -> None:
        view.add_row(name, Text(printable(text, MOST)))

    row("real episodes", f"{deployment.episodes}, none with a reward")
    row("readings per state", span(deployment.used))
    row("like the simulators", str(deployment.likeness) + _weakness(policy, deployment))
    if deployment.edges is not NO_CHECK:
        row("edges left out", str(deployment.edges))
    if not policy.ensemble.certified:
        row("C_L", "NOT certified: nothing that rests on Assumption 4 is promised")
    for look in deployment.looks:
        verdict = "enough" if look.enough else "go on"
        row(f"look at {look.n} per state", f"an action may lose up to {look.loss:.3g}: {verdict}")
    for notice in deployment.notices:
        row("note", notice)
    if deployed.worth:
        value, best = deployed.worth
        row("value of the policy", f"{value:.4f}, of {best:.4f} optimal in this world (after the fact)")
    return view


def promises(site: Site, deployment: Deployment) -> Text:
    """The certificate, where it covers this deployment; never without a warning in a world that is doubtful."""
    if site.file.certificate is None:
        return Text("no certificate: nothing was promised of this policy")
    if not deployment.as_trained:
        return Text("no certificate: it covers a fixed number of readings of every state, not this deployment")
    page = Text(site.file.certificate.page())
    if deployment.edges.edges and site.settings.refuse:
        page.append(EDGES_ON_TOP)
    verdict = worse(deployment.likeness.verdict, deployment.edges.verdict)
    if verdict == CONSISTENT:
        return page
    warning = (
        f": this world is {verdict}. What follows is promised for worlds like the simulators, and may not hold here.\n"
    )
    return Text.assemble(("WARNING", "bold red"), warning, page)


def worse(likeness: str, edges: str) -> str:
    """The verdict on a world; edges that were not tested say nothing against it."""
    by_edges = CONSISTENT if edges == UNTESTED else edges
    return max(likeness, by_edges, key=(CONSISTENT, UNTESTED, DOUBTFUL, REFUSED).index)


def _weakness(policy: MetaPolicy, deployment: Deployment) -> str:
    """Says so where no world whatever could have been refused: too few scores for so small a p."""
    if policy.reference is None or deployment.likeness.verdict == UNTESTED or not policy.reference.weakness:
        return ""
    return f"; {policy.reference.weakness}"
