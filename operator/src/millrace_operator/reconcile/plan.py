"""From what is seen of one topology to what is to be done about it: ``plan``.

The order of what is done is that in which a crash between two steps does no harm:

1. what must never be lost, before anything can need it: the passwords, the map of the view, the
   topology as it was accepted, and before that what is told of the edit;
2. the other children but for pods: where one is refused, no number of a driver is used up;
3. other events, then the status, which holds intents (the number of the next driver);
4. pods;
5. the proposal to the driver;
6. snapshots, which nothing else waits for;
7. where the plan before failed, that this one did not.

Whoever dies in between is followed by a plan made of what is there then. Nothing is done for a
topology that is being deleted: its children are its own and go with it, operator or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from millrace.homes import pods as names
from millrace.homes.accepted import Accepted
from millrace.homes.passwords import lines, secret_data
from millrace.homes.pods import Role, pod_name
from millrace.homes.tuning import Tuning
from millrace.topology.model import API_VERSION, KIND, StreamTopology
from millrace_operator.api.resources import AckersStatus, DriverStatus, TopologyStatus
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.builders.access import access
from millrace_operator.builders.documents import (
    accepted_map,
    accepted_name,
    books_name,
    empty_map,
    filled_maps,
    secrets,
)
from millrace_operator.builders.naming import DIGEST, Owner, digest
from millrace_operator.builders.network import budgets, policies, services
from millrace_operator.builders.pods import code_image
from millrace_operator.reconcile.actions import (
    Action,
    Announce,
    Apply,
    Create,
    DeleteChild,
    FillSecret,
    Propose,
    WriteStatus,
)
from millrace_operator.reconcile.conditions import (
    Standing,
    again_s,
    held_back,
    paused_status,
    status_of,
    transitions,
)
from millrace_operator.reconcile.crew import (
    Sizes,
    all_copied,
    answering,
    executors,
    holds_state,
    lost_members,
    plan_ackers,
    plan_servers,
    proposal,
    rejected_wait_s,
    replaced_ackers,
    scaled_by_load,
    sizes,
    spark_counts,
)
from millrace_operator.reconcile.driver import (
    DriverPlan,
    Wanted,
    newest,
    none_has_begun,
    plan_driver,
)
from millrace_operator.reconcile.edits import Edited, EditKind, edited, fingerprints
from millrace_operator.reconcile.observe import Moment, Observed, Secrets
from millrace_operator.reconcile.snapshots import (
    begins_from,
    held_snapshots,
    plan_snapshots,
    was_open,
)
from millrace_operator.reconcile.troubles import Trouble

STRANGERS_S = 2.0
"""How often what an earlier resource left behind is looked at: nobody tells that it is gone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``actions`` in order, and ``at_end`` what follows where none of them failed. ``wait_s``: look
    again after so long, even if nothing is seen."""

    actions: tuple[Action, ...] = ()
    wait_s: float | None = None
    at_end: tuple[Action, ...] = ()


def plan(observed: Observed, settings: OperatorSettings, moment: Moment) -> Plan:
    """What is to be done now; nothing where all is as it should be."""
    resource = observed.resource
    if resource.deleting:
        return Plan()
    if resource.unread:
        # Nothing is written over a status that holds more than can be read.
        return Plan((Announce("NewerFormat", resource.unread, warning=True),))
    if resource.paused:
        return Plan(tuple(_told(resource.status, paused_status(observed, moment.now))))
    owner = Owner(resource.name, resource.namespace, resource.uid, settings.version)
    edit = edited(resource, observed.accepted, was_open(observed))
    begins = begins_from(observed, edit.topology) if edit.topology is not None else None
    unfit = begins if isinstance(begins, Trouble) else None
    restore = None if isinstance(begins, Trouble) else begins
    lost = _lost_store(observed, owner) or _taken_names(observed)
    lost = lost or unfit
    if edit.accepted is None or edit.topology is None or lost is not None:
        unread = edit.kind is EditKind.UNREAD
        stalled = lost or Trouble("NewerFormat" if unread else "InvalidTopology", edit.text)
        status = status_of(observed, owner, _held(observed, edit.topology, stalled), moment.now)
        wait_s = STRANGERS_S if observed.strangers or unfit is not None else None
        held = held_snapshots(observed, stalled, moment.now)
        return Plan((*_told(resource.status, status), *held), wait_s)
    wanted = Wanted(owner, settings, edit.topology, edit.accepted, restore)
    driver = plan_driver(observed, wanted, moment.now)
    size = sizes(edit.topology, observed)
    standing = Standing(
        size,
        executors(edit.topology, observed.told),
        driver.status,
        stalled=_stalled(edit, driver),
        finished=driver.finished,
        suspended=edit.topology.spec.suspend,
        waiting=_waiting(observed, size),
        outdated=_outdated(observed, settings, edit.topology, edit.accepted),
        standbys=edit.topology.spec.standby_pods,
        spark_counts=spark_counts(edit.topology),
        copies=edit.topology.spec.state_servers.copies,
        restarts=driver.restarts,
        replaced=replaced_ackers(observed, edit.topology),
    )
    snapshots = plan_snapshots(observed, owner, edit.topology, moment.now)
    status = status_of(observed, owner, standing, moment.now)
    if snapshots.newest is not None:
        status = status.model_copy(update={"last_snapshot": snapshots.newest})
    before_end = held_back(status, resource, moment.now)
    proposed = proposal(observed, edit.topology, size, _tuning(edit.accepted, edit.topology))
    events = [
        *driver.events,
        *lost_members(observed, edit.topology, proposed, size),
        *scaled_by_load(observed.resource.status.ackers, size),
    ]
    actions: list[Action] = [
        *_stores(observed, owner, edit, moment),
        *_children(observed, owner, settings, edit.topology, size),
        *_told(resource.status, before_end, events),
        *plan_servers(observed, owner, settings, edit.topology, size.servers),
        *plan_ackers(observed, owner, settings, edit.topology, size.ackers),
        *driver.actions,
        *([Propose(proposed)] if proposed not in (None, observed.proposal) else []),
        *snapshots.actions,
    ]
    waits = (
        driver.wait_s,
        snapshots.wait_s,
        again_s(status, moment.now),
        rejected_wait_s(observed),
    )
    wait_s = min((one for one in waits if one is not None), default=None)
    return Plan(tuple(actions), wait_s, tuple(_told(before_end, status)))


def _held(observed: Observed, topology: StreamTopology | None, stalled: Trouble) -> Standing:
    """Of a topology for which nothing is done while it stalls; None: nobody knows what it says."""
    before = observed.resource.status
    # What the load had come to stays: nobody says that it is not to decide any more.
    was = before.ackers or AckersStatus()
    if topology is None:
        none = Sizes(0, 0, was.intended, was.asked)
        return Standing(none, 0, before.driver, stalled, held=True, known=False)
    size = sizes(topology, observed)
    return Standing(
        replace(size, intended=was.intended, asked=was.asked),
        executors(topology, observed.told),
        before.driver,
        stalled,
        spark_counts=spark_counts(topology),
        copies=topology.spec.state_servers.copies,
        held=True,
    )


def _tuning(accepted: Accepted, topology: StreamTopology) -> Tuning | None:
    """Settings that a driver may have begun without: none before they were edited."""
    return Tuning.of(topology, accepted.tuned) if accepted.tuned else None


def _lost_store(observed: Observed, owner: Owner) -> Trouble | None:
    """What must be there once a driver was started, and is not: only a user can bring it back. A
    map of the view in which no driver can have written anything is made anew."""
    if newest(observed) == 0:
        return None
    needed = [("Secret", names.secret(owner.name)), ("ConfigMap", names.view_map(owner.name))]
    lost = [f"{kind} {name}" for kind, name in needed if observed.child(kind, name) is None]
    if _never_viewed(observed, owner):
        lost = [one for one in lost if one != f"ConfigMap {names.view_map(owner.name)}"]
    if observed.accepted is None:
        lost.append(f"ConfigMap {accepted_name(owner)}")
    if not lost:
        return None
    gone = [one for one in lost if one not in observed.strangers]
    texts = []
    if gone:
        texts.append(
            f"{' and '.join(gone)} is gone, which the state depends on; bring it back from a copy"
        )
    if astray := [one for one in lost if one in observed.strangers]:
        texts.append(
            f"{' and '.join(astray)} is there and not this topology's, as a copy is that was made "
            f"without owner references: if it is, give it one: apiVersion {API_VERSION}, kind "
            f"{KIND}, name {owner.name}, uid {owner.uid}, controller true"
        )
    return Trouble("StoreLost", "; ".join(texts))


def _never_viewed(observed: Observed, owner: Owner) -> bool:
    """Whether nothing can have been in a map of the view that is gone: the journal is there and no
    driver has told anything, nor did anybody see a view or the process of a driver."""
    status, journal = observed.resource.status, names.journal_map(owner.name)
    seen = (status.epoch, status.window, observed.window, status.last_snapshot)
    if any(one is not None for one in seen) or observed.forks:
        return False
    strange = f"ConfigMap {names.view_map(owner.name)}" in observed.strangers
    there = observed.child("ConfigMap", journal) is not None
    return there and not strange and none_has_begun(observed)


def _taken_names(observed: Observed) -> Trouble | None:
    """Before anything of a topology is made: what has the names of its children and is not its own.
    It would lend the topology a password that others know, and go when its own owner goes."""
    if not observed.strangers or newest(observed) > 0:
        return None
    few = ", ".join(observed.strangers[:3])
    more = f" and {len(observed.strangers) - 3} more" if len(observed.strangers) > 3 else ""
    text = (
        f"{few}{more} belong to an earlier resource of this name or to something else; nothing is "
        "made until they are gone: wait, or delete them"
    )
    return Trouble("NamesTaken", text)


def _stores(observed: Observed, owner: Owner, edit: Edited, moment: Moment) -> Iterator[Action]:
    """What is never overwritten, and the topology that is in force from now on, once it is told."""
    if observed.child("Secret", names.secret(owner.name)) is None:
        yield Create(secrets(owner, moment.password, moment.run_key, moment.root_key))
    elif observed.secrets is not None:
        yield from _filled(observed.secrets, owner, moment)
    for name in filled_maps(owner):
        if observed.child("ConfigMap", name) is None:
            yield Create(empty_map(owner, name))
    if edit.accepted is not None and edit.accepted != observed.accepted:
        # Behind that nobody knows any more that there was an edit.
        yield from _edit_events(observed, edit)
        yield Apply(accepted_map(owner, edit.accepted))


def _filled(secrets: Secrets, owner: Owner, moment: Moment) -> Iterator[Action]:
    """A password of its own for each member of a topology that an older operator has made, or of
    which somebody has changed the root key. Pods that were made before take these, too."""
    new = {} if lines(secrets.data.get(names.ROOT_KEY, "")) else {names.ROOT_KEY: moment.root_key}
    lacking = {**new, **secret_data(owner.name, owner.uid, {**secrets.data, **new})}
    if lacking:
        yield FillSecret(names.secret(owner.name), secrets.version, lacking)


def _told(
    before: TopologyStatus, status: TopologyStatus, events: Sequence[Announce] = ()
) -> Iterator[Action]:
    yield from events
    yield from transitions(before, status)
    if status != before:
        yield WriteStatus(status)


def _children(
    observed: Observed,
    owner: Owner,
    settings: OperatorSettings,
    topology: StreamTopology,
    size: Sizes,
) -> Iterator[Action]:
    """Apply what changed, delete what is not needed any more."""
    # Those that are to leave hold copies, too, until the view does without them.
    servers = [
        pod
        for pod in observed.of(Role.STATE_SERVER)
        if not pod.ended and (not pod.deleting or holds_state(observed, pod))
    ]
    highest = max([size.servers, *(pod.index + 1 for pod in servers)])
    copied = all_copied(observed, highest, topology.spec.state_servers.copies)
    manifests = [
        *access(owner, topology),
        *services(owner, topology),
        *policies(
            owner,
            settings.namespace,
            settings.metrics_from,
            state_servers=topology.spec.state_servers.url is None,
        ),
        *budgets(owner, topology, size.ackers, copied, len(servers)),
    ]
    made = {(m["kind"], m["metadata"]["name"]) for m in manifests}
    for manifest in manifests:
        child = observed.child(manifest["kind"], manifest["metadata"]["name"])
        wanted = digest(manifest)
        if child is None or child.digest != wanted or observed.resync:
            annotations = {**manifest["metadata"].get("annotations", {}), DIGEST: wanted}
            yield Apply(
                {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}
            )
    kept = {*filled_maps(owner), accepted_name(owner), books_name(owner)}
    kept |= {pod.name for pod in observed.of(Role.DRIVER)} | _mounted_soon(observed, owner)
    for child in observed.children:
        named = (child.kind, child.name)
        stays = child.kind == "Secret" or (child.kind == "ConfigMap" and child.name in kept)
        if named not in made and not stays:
            yield DeleteChild(child.kind, child.name, child.uid)


def _mounted_soon(observed: Observed, owner: Owner) -> set[str]:
    """Maps of drivers whose pods are not seen: the creation of the last ones may come through yet,
    and another operator may make the next one just now. Without its map a pod never begins."""
    told = observed.resource.status.driver or DriverStatus()
    last = max(told.number, told.given, told.standby or 0)
    prefix = pod_name(owner.name, Role.DRIVER, 0).removesuffix("0")
    maps = [one.name for one in observed.children if one.kind == "ConfigMap"]
    numbers = {name: name.removeprefix(prefix) for name in maps if name.startswith(prefix)}
    return {
        name
        for name, number in numbers.items()
        if number.isdecimal() and (int(number) in (told.number, told.standby) or int(number) > last)
    }


def _stalled(edit: Edited, driver: DriverPlan) -> Trouble | None:
    if edit.kind is EditKind.INVALID:
        return Trouble("InvalidTopology", f"what was accepted before stays in force: {edit.text}")
    if edit.kind is EditKind.REFUSED:
        return Trouble("EditRefused", f"what was accepted before stays in force: {edit.text}")
    return driver.gave_up


def _edit_events(observed: Observed, edit: Edited) -> list[Announce]:
    kind = EditKind.RESTART if _outruns_driver(observed, edit) else edit.kind
    match kind:
        case EditKind.IN_PLACE:
            since = f", behind sealed window {observed.window or 0}" if edit.tuned else ""
            told = Announce("EditedInPlace", f"without a restart{since}: {edit.text}")
        case EditKind.RESTART:
            window = observed.window or 0
            text = f"the driver starts again from sealed window {window}: {edit.text}"
            told = Announce("EditedWithRestart", text)
        case EditKind.FIRST | EditKind.NONE | EditKind.REFUSED | EditKind.INVALID | EditKind.UNREAD:
            return []
    return [told, *_kept_memory(observed, edit), *_kept_pods(observed, edit)]


def _outruns_driver(observed: Observed, edit: Edited) -> bool:
    """Whether the driver that runs is of a release which follows no such edit in place."""
    if not edit.tuned or edit.accepted is None:
        return False
    prints = fingerprints(edit.accepted)
    drivers = [pod for pod in observed.of(Role.DRIVER) if pod.index == newest(observed)]
    return any(not pod.ended and pod.fingerprint not in prints for pod in drivers)


def _kept_memory(observed: Observed, edit: Edited) -> list[Announce]:
    """A pod's memory cannot be changed: other memory is for servers that are made from now on."""
    was, now = (
        one.topology["spec"].get("stateServers", {}).get("memory") if one is not None else None
        for one in (observed.accepted, edit.accepted)
    )
    if was == now or not any(pod.begun for pod in observed.of(Role.STATE_SERVER)):
        return []
    text = (
        "state servers that run keep the memory that they have: with spec.stateServers.copies "
        "above 1 delete one pod at a time, when all others are ready; with one copy ask for more "
        "spec.stateServers.replicas"
    )
    return [Announce("StateServersKeepMemory", text, warning=True)]


def _kept_pods(observed: Observed, edit: Edited) -> list[Announce]:
    """The same for all that ``spec.pods`` says of them."""
    told = []
    for role, field, remedy in (
        (Role.ACKER, "ackers", "delete them, one at a time"),
        (Role.STATE_SERVER, "stateServers", "as for spec.stateServers.memory"),
    ):
        was, now = (
            one.topology["spec"].get("pods", {}).get(field, {}) if one is not None else None
            for one in (observed.accepted, edit.accepted)
        )
        if was != now and any(pod.begun for pod in observed.of(role)):
            text = f"pods that run keep what spec.pods.{field} said when they were made: {remedy}"
            told.append(Announce("PodsKeepSettings", text, warning=True))
    return told


def _outdated(
    observed: Observed, settings: OperatorSettings, topology: StreamTopology, accepted: Accepted
) -> tuple[str, ...]:
    """Pods that have begun, and would be made with another image now; executors come and go with
    their driver. A driver that an edit ends, of its image for example, needs nobody to renew it."""
    prints = fingerprints(accepted)
    wanted = {
        Role.STATE_SERVER: settings.state_image,
        Role.ACKER: settings.runtime_image,
        Role.DRIVER: code_image(settings, topology),
    }
    return tuple(
        pod.name
        for role, image in wanted.items()
        for pod in observed.of(role)
        if pod.image and pod.image != image and pod.begun and not pod.ended and not pod.deleting
        if role is not Role.DRIVER or pod.fingerprint in prints
    )


def _waiting(observed: Observed, size: Sizes) -> str:
    known = sum(pod.run_id is not None for pod in observed.of(Role.STATE_SERVER))
    if observed.view is None and known < size.servers:
        return answering(observed, size.servers)
    return ""
