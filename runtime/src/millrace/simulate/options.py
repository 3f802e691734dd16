"""What one run looks like: the topology's shape, the faults, the poison. All from the seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Any

from millrace.protocol.types import Guarantee


@dataclass(frozen=True, slots=True)
class Network:
    """Probabilities for one message; ``late_s`` is the mean extra delay of a late one (seconds)."""

    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    late_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Chaos:
    """How often things break while the storm lasts; ``engine`` is the probability that the engine
    fails an attempt at its end.

    ``driver`` is the probability of a kill or a freeze after one action, ``task`` that a task
    attempt dies, ``loser`` that a task runs twice at once, ``mixed`` that readers see different
    attempts of one map partition, ``tuple_lost`` that an envelope loses or doubles a tuple,
    ``short_read`` that a source task silently skips a root, ``short_told`` that it skips one and
    says so, ``unread`` that a reader leaves an envelope out, ``misled`` that an ack message lands
    on the wrong slice, ``verdict_short`` that a verdict forgets an incomplete root.
    ``letters_unread`` is the probability that an owner does not give the dead letters that are to
    be carried over, ``change`` that of a kill or a freeze after one action more, while a driver is
    on its way to an open view, ``half_seal`` that the first server that takes a seal dies with it.
    ``cut_s`` is about servers that live and cannot be reached for a while, ``part_s`` about those
    that only the driver, only the tasks or both cannot reach, perhaps for good, ``hang_s`` about
    stopped processes, ``slow_s`` about slow ones, ``deaf_s`` about those that take no objects,
    ``burst_s`` about as many as may be lost that die at once, ``power_s`` about all servers at once
    that go down and come back on their files, ``stale_s`` about an old file that is put back,
    ``clock_s`` about a wall clock that is set, ``resize_s`` about windows that are to have another
    size, ``standby_s`` about the driver that stands by, ``copies_s`` about objects that are to have
    more or fewer copies, ``blind_s`` about an operator that proposes nothing new for a while.
    The ``*_s`` are mean times between faults
    in seconds, 0 for never.
    """

    driver: float = 0.0
    freeze: float = 0.0
    task: float = 0.0
    loser: float = 0.0
    mixed: float = 0.0
    tuple_lost: float = 0.0
    short_read: float = 0.0
    short_told: float = 0.0
    unread: float = 0.0
    misled: float = 0.0
    verdict_short: float = 0.0
    cas_answer_lost: float = 0.0
    sink_away: float = 0.0
    server_s: float = 0.0
    acker_s: float = 0.0
    log_s: float = 0.0
    rival_s: float = 0.0
    stop_s: float = 0.0
    cut_s: float = 0.0
    scale_s: float = 0.0
    engine: float = 0.0
    stale_s: float = 0.0
    clock_s: float = 0.0
    power_s: float = 0.0
    change: float = 0.0
    burst_s: float = 0.0
    part_s: float = 0.0
    hang_s: float = 0.0
    slow_s: float = 0.0
    deaf_s: float = 0.0
    half_seal: float = 0.0
    standby_s: float = 0.0
    resize_s: float = 0.0
    copies_s: float = 0.0
    blind_s: float = 0.0
    letters_unread: float = 0.0


@dataclass(frozen=True, slots=True)
class Poison:
    """Share of the roots that is poisoned in each way; see ``workload.RootKind``."""

    raises: float = 0.0
    raises_late: float = 0.0
    raises_once: float = 0.0
    kills: float = 0.0
    kills_late: float = 0.0
    combine: float = 0.0
    unreadable: float = 0.0
    lasting: float = 0.0


class Older(Enum):
    """What is put back from an older copy."""

    EVERYTHING = "everything"
    VIEW = "view"
    NO_VIEW = "no view"


@dataclass(frozen=True, slots=True)
class Options:
    """One run. ``copies`` is R; ``combined`` merges a window's tuples before the exchange;
    ``side`` gives the tuples a second consumer with a sink of its own; ``codec`` sends records
    and views through their JSON form. From ``outage_s`` on, in seconds, the engine fails every
    attempt until well behind the storm. At ``edit_s`` the topology is edited: source b goes, source
    c comes, and with ``reborn`` the last stateful processor is replaced by another of its name.
    At ``older_s`` a copy of what ``older`` says is taken, to be put back later. More than
    ``dead_percent`` of the judged roots dead stop the run, until its user allows more. ``holes`` is
    the share of offsets that carry no record. With ``standby`` a second driver is kept ready, with
    ``learners`` servers learn before they join. ``letters_together`` is the most dead letters that
    one object has of several windows, ``encloses`` the share of tasks whose report has their ack
    messages. ``snapshot_s`` is the mean time between two
    snapshots; from ``lost_s`` on, once there is one, all copies of some state are lost together.
    With ``late`` a server hangs once more after the storm, when a root comes, and the last root
    comes long after that, for a driver that has just started. With ``unseen`` that server is
    started anew instead, and the operator proposes nothing new any more."""

    seed: int
    guarantee: Guarantee
    servers: int
    copies: int
    passes: int
    parallelism: int
    tracking: bool
    combined: bool
    side: bool
    random_output: bool
    ackers: int
    roots: int
    max_records: int
    key_groups: int = 4
    max_replays: int = 2
    max_unpublished: int = 4
    storm_s: float = 20.0
    network: Network = field(default_factory=Network)
    chaos: Chaos = field(default_factory=Chaos)
    poison: Poison = field(default_factory=Poison)
    poison_only: bool = False
    requests: bool = False
    emits_final: bool = False
    callbacks: bool = False
    codec: bool = False
    outage_s: float | None = None
    edit_s: float | None = None
    reborn: bool = False
    older_s: float | None = None
    older: Older = Older.EVERYTHING
    dead_percent: int | None = None
    holes: float = 0.0
    standby: bool = False
    learners: bool = False
    snapshot_s: float = 0.0
    lost_s: float | None = None
    late: bool = False
    unseen: bool = False
    prepares: bool = False
    letters_together: int = 0
    encloses: float = 0.0


_GUARANTEES = (
    Guarantee.EXACTLY_ONCE,
    Guarantee.AT_LEAST_ONCE,
    Guarantee.EXACTLY_ONCE,
    Guarantee.AT_MOST_ONCE,
)


def draw(seed: int) -> Options:
    """Options of a seed; neighbouring seeds differ in guarantee, servers, copies and passes."""
    rng = Random(f"options/{seed}")
    guarantee = _GUARANTEES[seed % 4]
    servers = 1 + seed // 4 % 3
    passes = 1 + seed // 12 % 3
    copies = min(servers, rng.choice((1, 2, 2, 3)))
    poison_only = rng.random() < 0.12
    tracking = guarantee is not Guarantee.AT_MOST_ONCE and rng.random() < 0.9
    options = Options(
        seed=seed,
        guarantee=guarantee,
        servers=servers,
        copies=copies,
        passes=passes,
        parallelism=1 if passes == 1 else rng.choice((1, 2, 2, 3)),
        tracking=tracking,
        combined=passes > 1 and rng.random() < 0.4,
        side=rng.random() < 0.5,
        random_output=rng.random() < 0.5,
        ackers=rng.choice((1, 2, 2, 3)),
        roots=rng.randint(24, 56),
        max_records=rng.randint(4, 8),
        key_groups=rng.choice((2, 4, 6)),
        max_replays=rng.choice((1, 2, 3)),
        max_unpublished=rng.choice((1, 2, 4)),
        storm_s=rng.uniform(10.0, 24.0),
        network=Network() if poison_only else _network(rng),
        chaos=Chaos() if poison_only else _chaos(rng, tracking),
        poison=_poison(rng, poison_only, seed),
        poison_only=poison_only,
        requests=not poison_only and rng.random() < 0.4,
        emits_final=rng.random() < 0.25,
        callbacks=rng.random() < 0.3,
        codec=rng.random() < 0.1,
        outage_s=rng.uniform(0.0, 10.0) if not poison_only and rng.random() < 0.15 else None,
        **_edit(seed, poison_only),
        **(_older(seed) if servers == 1 and not poison_only else {}),
    )
    options = replace(options, dead_percent=_dead_percent(options), holes=_holes(seed))
    options = _with_standby(_with_deaf(_with_leaves(_with_servers(options))))
    options = replace(options, chaos=replace(options.chaos, power_s=_power(options)))
    options = _with_copies(_with_resizes(_with_losses(options)))
    options = replace(options, late=_late(options), prepares=_prepares(options))
    options = replace(options, encloses=_encloses(options))
    return _with_blindness(_with_letters_together(options))


def _with_blindness(options: Options) -> Options:
    """In some of the runs with several servers the operator is away for a while, or for good."""
    # Drawn apart, so that every seed means the run that it meant before there was any.
    rng = Random(f"blind/{options.seed}")
    options = replace(options, unseen=options.late and rng.random() < 0.4)
    if options.poison_only or options.servers == 1 or rng.random() < 0.8:
        return options
    return replace(options, chaos=replace(options.chaos, blind_s=rng.uniform(2.0, 10.0)))


def _with_letters_together(options: Options) -> Options:
    """In some of the runs dead letters of several windows share an object."""
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"letters/{options.seed}")
    if rng.random() >= 0.5:
        return options
    together, unread = rng.choice((2, 3, 5, 8)), rng.choice((0.0, 0.1, 0.4))
    chaos = replace(options.chaos, letters_unread=0.0 if options.poison_only else unread)
    return replace(options, letters_together=together, chaos=chaos)


def _prepares(options: Options) -> bool:
    if options.passes == 1 or options.guarantee is Guarantee.AT_MOST_ONCE:
        return False
    return Random(f"prepares/{options.seed}").random() < 0.6


def _encloses(options: Options) -> float:
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"encloses/{options.seed}")
    return rng.choice((1.0, 0.9, 0.6)) if options.tracking and rng.random() < 0.4 else 0.0


def _late(options: Options) -> bool:
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"late/{options.seed}")
    return rng.random() < 0.2 and not options.poison_only and options.older_s is None


def _with_copies(options: Options) -> Options:
    """In some of the runs with several servers the user wants more or fewer copies."""
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"copies/{options.seed}")
    others = options.older_s is not None or options.lost_s is not None or options.poison_only
    if others or options.servers == 1 or rng.random() < 0.7:
        return options
    return replace(options, chaos=replace(options.chaos, copies_s=rng.uniform(1.5, 6.0)))


def _with_resizes(options: Options) -> Options:
    """In some of the runs windows get another size while a driver runs."""
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"resizes/{options.seed}")
    if options.poison_only or rng.random() < 0.85:
        return options
    return replace(options, chaos=replace(options.chaos, resize_s=rng.uniform(0.3, 3.0)))


def _with_losses(options: Options) -> Options:
    """Some of the runs lose all copies of some state, and restore a snapshot."""
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"lost/{options.seed}")
    others = options.edit_s is not None or options.older_s is not None or options.poison_only
    if others or rng.random() < 0.6:
        return options
    return replace(
        options,
        chaos=replace(options.chaos, stale_s=0.0),
        requests=False,
        dead_percent=None,
        snapshot_s=rng.uniform(0.5, 3.0),
        lost_s=options.storm_s * rng.uniform(0.1, 0.7),
    )


def _with_leaves(options: Options) -> Options:
    """Some of the runs have more servers than copies, which come and go on purpose all the time."""
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"leaves/{options.seed}")
    if options.poison_only or options.copies == 1 or rng.random() < 0.6:
        return options
    more = max(options.servers, options.copies + rng.choice((1, 2, 2)))
    chaos = replace(options.chaos, scale_s=rng.uniform(0.8, 3.0))
    return replace(options, servers=more, chaos=chaos, learners=rng.random() < 0.8)


def _with_deaf(options: Options) -> Options:
    """In some of the runs servers answer and take no objects."""
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"deaf/{options.seed}")
    if options.poison_only or options.servers == 1 or rng.random() < 0.7:
        return options
    return replace(options, chaos=replace(options.chaos, deaf_s=rng.uniform(1.0, 6.0)))


def _power(options: Options) -> float:
    # Drawn apart, so that every seed means the run that it meant before there was any.
    rng = Random(f"power/{options.seed}")
    often = options.copies > 1 and not options.poison_only and rng.random() < 0.4
    return rng.uniform(4.0, 12.0) if often else 0.0


def _with_standby(options: Options) -> Options:
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"standby/{options.seed}")
    if options.poison_only or options.older_s is not None or rng.random() < 0.65:
        return options
    chaos = replace(options.chaos, standby_s=rng.uniform(2.0, 12.0))
    return replace(options, standby=True, chaos=chaos)


def _with_servers(options: Options) -> Options:
    """Some of the runs with several servers have more of them, or more that befalls them."""
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"servers/{options.seed}")
    if options.servers == 3 and rng.random() < 0.35:
        servers = rng.choice((4, 5))
        options = replace(options, servers=servers, copies=rng.choice((1, 2, 2, 3, 3)))
    options = replace(options, learners=options.servers > 1 and rng.random() < 0.5)
    if options.poison_only or options.servers == 1 or rng.random() < 0.5:
        return options

    def some(value: float, share: float) -> float:
        return value * rng.uniform(0.5, 2.0) if rng.random() < share else 0.0

    chaos = replace(
        options.chaos,
        change=rng.uniform(0.0, 0.08) if rng.random() < 0.5 else 0.0,
        burst_s=some(8.0, 0.5),
        part_s=some(6.0, 0.6),
        hang_s=some(8.0, 0.5),
        slow_s=some(6.0, 0.4),
        half_seal=some(0.1, 0.4),
    )
    return replace(options, chaos=chaos)


def _holes(seed: int) -> float:
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"holes/{seed}")
    return rng.choice((0.05, 0.2, 0.6)) if rng.random() < 0.3 else 0.0


def _dead_percent(options: Options) -> int | None:
    """For runs in which roots are read and fail, and nothing else takes them away."""
    plain = not (options.poison_only or options.requests or options.edit_s or options.older_s)
    if not plain or options.guarantee is Guarantee.AT_MOST_ONCE:
        return None
    rng = Random(f"dead/{options.seed}")
    return rng.choice((0, 5, 10, 20)) if rng.random() < 0.5 else None


def _edit(seed: int, poison_only: bool) -> dict[str, Any]:
    rng = Random(f"edit/{seed}")
    edited = not poison_only and rng.random() < 0.3
    return {"edit_s": rng.uniform(2.0, 9.0) if edited else None, "reborn": rng.random() < 0.5}


def _older(seed: int) -> dict[str, Any]:
    rng = Random(f"older/{seed}")
    if rng.random() < 0.3:
        return {"older_s": rng.uniform(2.0, 7.0)}
    # Drawn apart, so that every seed means the run that it meant before there were any.
    rng = Random(f"older view/{seed}")
    if rng.random() < 0.7:
        return {}
    return {"older_s": rng.uniform(1.0, 7.0), "older": rng.choice((Older.VIEW, Older.NO_VIEW))}


def _network(rng: Random) -> Network:
    if rng.random() < 0.2:
        return Network()
    scale = rng.choice((0.3, 1.0, 2.0))
    return Network(0.02 * scale, 0.03 * scale, 0.04 * scale, rng.choice((0.3, 1.0, 3.0)))


def _chaos(rng: Random, tracking: bool) -> Chaos:
    def some(value: float, share: float = 0.7) -> float:
        return value * rng.uniform(0.5, 2.0) if rng.random() < share else 0.0

    return Chaos(
        driver=rng.uniform(0.004, 0.02),
        freeze=rng.uniform(0.0, 0.6),
        task=some(0.03),
        loser=some(0.1),
        mixed=some(0.3, 0.4),
        tuple_lost=some(0.03) if tracking else 0.0,
        short_read=some(0.03, 0.4) if tracking else 0.0,
        cas_answer_lost=some(0.15),
        sink_away=some(0.05),
        server_s=some(6.0, 0.8),
        acker_s=some(5.0),
        log_s=some(15.0, 0.4),
        rival_s=some(10.0, 0.5),
        stop_s=some(20.0, 0.2),
        cut_s=some(8.0, 0.3),
        scale_s=some(8.0, 0.5),
        engine=some(0.1, 0.4),
        short_told=some(0.02, 0.3),
        unread=some(0.02, 0.3),
        misled=some(0.02, 0.3) if tracking else 0.0,
        verdict_short=some(0.3, 0.3) if tracking else 0.0,
        stale_s=some(5.0, 0.5),
        clock_s=some(6.0, 0.5),
    )


def _poison(rng: Random, poison_only: bool, seed: int) -> Poison:
    if not poison_only and rng.random() < 0.3:
        return Poison()

    def some(value: float) -> float:
        return value * rng.uniform(0.5, 2.0) if rng.random() < 0.4 else 0.0

    kills = 0.05 if poison_only else 0.02
    # Drawn apart, so that every seed means the run that it meant before there were any.
    apart = Random(f"unreadable {seed}")
    unreadable = 0.04 * apart.uniform(0.5, 2.0) if apart.random() < 0.4 else 0.0
    apart = Random(f"lasting {seed}")
    lasting = 0.04 * apart.uniform(0.5, 2.0) if apart.random() < 0.3 else 0.0
    raises = 0.3 if rng.random() < 0.15 else some(0.04)
    raising = (raises, some(0.04), some(0.04))
    return Poison(*raising, some(kills), some(kills), some(0.03), unreadable, lasting)
