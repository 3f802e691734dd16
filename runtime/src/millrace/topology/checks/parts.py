"""Rules about single parts and settings: kinds, sources, sinks, guarantee, acker and state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

from millrace.topology.checks.facts import Facts
from millrace.topology.kinds.registry import SINKS
from millrace.topology.kinds.sink_redis import address_problems
from millrace.topology.limits import LONGEST_NUMBER
from millrace.topology.parts import CustomPart, Guarantee
from millrace.topology.places import real
from millrace.topology.problems import NOTHING, FieldPath, Problem, format_path
from millrace.topology.scalars import memory_bytes


def exactly_one_kind(facts: Facts) -> Iterator[Problem]:
    """A source, processor or sink must declare what it is, once."""
    spec = facts.topology.spec
    lists = (("sources", spec.sources), ("processors", spec.processors), ("sinks", spec.sinks))
    for name, parts in lists:
        for index, part in enumerate(parts):
            kinds = [kind.name for kind, _ in part.declared()]
            if len(kinds) != 1:
                found = f"declares {' and '.join(kinds)}" if kinds else "declares no kind"
                yield Problem(
                    format_path(("spec", name, index)),
                    part.name,
                    found,
                    f"give it exactly one of {', '.join(part.kinds())}",
                )


def one_place_of_code(facts: Facts) -> Iterator[Problem]:
    """User code comes from one place."""
    code = facts.topology.spec.code
    places = {"path": code.path, "image": code.image, "configMap": code.config_map}
    given = [name for name, value in places.items() if value is not None]
    if len(given) > 1:
        message = f"declares {' and '.join(given)}"
        yield Problem("spec.code", NOTHING, message, "keep one of them")


def pull_secrets_of_an_image(facts: Facts) -> Iterator[Problem]:
    """Pull secrets go with an image of the user's own, and each stands there once."""
    code, path = facts.topology.spec.code, ("spec", "code", "imagePullSecrets")
    if code.image_pull_secrets is None:
        return
    if code.image is None:
        message = "says nothing without an image to pull"
        remedy = "name that in spec.code.image, or remove them"
        yield Problem(format_path(path), NOTHING, message, remedy)
    for index, name in enumerate(code.image_pull_secrets):
        if name in code.image_pull_secrets[:index]:
            yield Problem(format_path((*path, index)), name, "stands there twice", "keep one")


def settings_of_kinds(facts: Facts) -> Iterator[Problem]:
    """What each kind says of its settings."""
    for component, part in facts.components():
        for kind, settings in part.declared():
            yield from kind.check(settings, component, facts)


def options_as_json(facts: Facts) -> Iterator[Problem]:
    """Options of the user's own classes are kept and sent as JSON."""
    for component, part in facts.components():
        for kind, settings in part.declared():
            if isinstance(settings, CustomPart):
                yield from _no_json(settings.options, (*component.path, kind.name, "options"))


_NO_JSON = {date: "a date", datetime: "a date", bytes: "binary data", set: "a set"}


def _no_json(value: Any, path: FieldPath) -> Iterator[Problem]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _no_json(inner, (*path, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _no_json(inner, (*path, index))
    elif isinstance(value, int | float):
        # Of so long a number JSON's readers do not agree, and Python reads none of some thousand.
        if not math.isfinite(value) if isinstance(value, float) else abs(value) >= _TOO_LONG:
            message = "is a number that JSON does not have"
            yield Problem(format_path(path), NOTHING, message, "put it in quotes")
    elif value is not None and not isinstance(value, str):
        what = _NO_JSON.get(type(value), "a value of YAML alone")
        message = f"is {what}, which JSON does not have"
        yield Problem(format_path(path), NOTHING, message, "put it in quotes, or write a list")


_TOO_LONG = 10**LONGEST_NUMBER


def separate_folders(facts: Facts) -> Iterator[Problem]:
    """No two sinks write into one folder, and none into one that a source reads."""
    sources = [(c.name, kind, s) for c, part in facts.sources() for kind, s in part.declared()]
    sinks: dict[str, str] = {}
    for index, sink in enumerate(facts.topology.spec.sinks):
        for kind, settings in sink.declared():
            written = kind.writes(settings)
            if written is None:
                continue
            path = format_path(("spec", "sinks", index, kind.name, "path"))
            folder = real(written.path, facts.folder)
            for name, source, read in sources:
                if source.reads(read, written, facts.folder):
                    message = f"is a folder that source {name!r} reads"
                    yield Problem(path, written.path, message, "write into another folder")
                    break
            if folder in sinks:
                message = f"is the folder of sink {sinks[folder]!r} too"
                yield Problem(path, written.path, message, "write into another folder")
            sinks.setdefault(folder, sink.name)


def guarantee_of_sinks(facts: Facts) -> Iterator[Problem]:
    """A kind of sink must be able to give the guarantee; a custom class is asked by its kind."""
    wanted = facts.topology.spec.guarantee
    for index, sink in enumerate(facts.topology.spec.sinks):
        for kind, _ in sink.declared():
            if wanted not in kind.guarantees:
                best = f"set spec.guarantee to {kind.guarantees[-1].value}, or " * bool(
                    kind.guarantees
                )
                yield Problem(
                    format_path(("spec", "sinks", index, kind.name)),
                    sink.name,
                    f"cannot give {wanted.value}: {kind.weakness}",
                    f"{best}use a {_able(wanted)} sink",
                )


def _able(wanted: Guarantee) -> str:
    """The kinds that give a guarantee whatever their settings: ``files or redis``."""
    names = [k.name for k in SINKS if wanted in k.guarantees and k.lasting]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def ackers_for_tracking(facts: Facts) -> Iterator[Problem]:
    """Tracking needs an acker."""
    spec = facts.topology.spec
    if spec.tracked and spec.ackers.replicas == 0:
        yield Problem(
            "spec.ackers.replicas",
            0,
            "leaves nobody to prove that tuple trees are complete",
            'use at least 1, or set spec.tracking: "Off"',
        )


def bounds_of_ackers(facts: Facts) -> Iterator[Problem]:
    """The least and the most ackers come together, in this order."""
    ackers = facts.topology.spec.ackers
    if ackers.least is None and ackers.most is None:
        return
    if ackers.least is None or ackers.most is None:
        given, missing = ("max", "min") if ackers.least is None else ("min", "max")
        yield Problem(
            f"spec.ackers.{given}",
            ackers.most if ackers.least is None else ackers.least,
            f"says nothing without {missing}",
            f"add spec.ackers.{missing}, or declare only the replicas",
        )
    elif ackers.least > ackers.most:
        yield Problem(
            "spec.ackers.min",
            ackers.least,
            f"is more than spec.ackers.max ({ackers.most})",
            "lower it or raise the max",
        )


def bounds_of_executors(facts: Facts) -> Iterator[Problem]:
    """The least and the most executors come together, around the number to begin with."""
    path, executors = "spec.spark.executors", facts.topology.spec.spark.executors
    least, most = executors.least, executors.most
    if least is None and most is None:
        return
    if least is None or most is None:
        given, missing = ("max", "min") if least is None else ("min", "max")
        yield Problem(
            f"{path}.{given}",
            most if least is None else least,
            f"says nothing without {missing}",
            f"add {path}.{missing}, or declare only the instances",
        )
    elif not least <= executors.instances <= most:
        yield Problem(
            f"{path}.instances",
            executors.instances,
            f"is not from {path}.min ({least}) to {path}.max ({most})",
            "name a number between them, with which a driver begins",
        )


def interval_bounds(facts: Facts) -> Iterator[Problem]:
    """Windows that have to be apart cannot have to be closer."""
    window = facts.topology.spec.window
    least = window.min_interval
    if least is not None and least.seconds > window.max_interval.seconds:
        yield Problem(
            "spec.window.minInterval",
            str(least),
            f"is more than spec.window.maxInterval ({window.max_interval})",
            "lower it or raise maxInterval",
        )


def state_copies(facts: Facts) -> Iterator[Problem]:
    """Copies need as many servers; a server of one's own is one."""
    state = facts.topology.spec.state_servers
    if state.copies > state.replicas:
        yield Problem(
            "spec.stateServers.copies",
            state.copies,
            f"is more than there are servers ({state.replicas})",
            "raise spec.stateServers.replicas or lower the copies",
        )
    if state.url is None and state.password is not None:
        message = "does not go with servers that Millrace starts, which have one of their own"
        remedy = "remove it, or name your server in spec.stateServers.url"
        yield Problem("spec.stateServers.password", NOTHING, message, remedy)
    if state.url is not None:
        apart = state.password is not None
        yield from address_problems("spec.stateServers.url", state.url, apart)
        if state.replicas > 1:
            yield Problem(
                "spec.stateServers.replicas",
                state.replicas,
                "does not go with a server of your own, which is one",
                "use 1 or remove spec.stateServers.url",
            )


LEAST_STATE_MEMORY = "8m"
"""An empty server takes one or two."""


def state_memory(facts: Facts) -> Iterator[Problem]:
    """The limit of servers that Millrace starts; one of the user's own has it already."""
    state = facts.topology.spec.state_servers
    if state.memory is None:
        return
    path = "spec.stateServers.memory"
    if state.url is not None:
        yield Problem(
            path,
            state.memory,
            "does not go with a server of your own, which has its maxmemory",
            "set that, or remove spec.stateServers.url",
        )
    if memory_bytes(state.memory) < memory_bytes(LEAST_STATE_MEMORY):
        message = "is too little for a server that holds anything"
        yield Problem(path, state.memory, message, f"use at least {LEAST_STATE_MEMORY}")


def final_needs_an_end(facts: Facts) -> Iterator[Problem]:
    """``emit: final`` emits when all sources upstream are drained, so they must end."""
    endless = {
        c.name for c, part in facts.sources() if any(k.endless(s) for k, s in part.declared())
    }
    for index, processor in enumerate(facts.topology.spec.processors):
        late = next(((k.name, k.at_end(s)) for k, s in processor.declared() if k.at_end(s)), None)
        if late is None:
            continue
        names = sorted(facts.graph.upstream(processor.name) & endless)
        if names:
            yield Problem(
                format_path(("spec", "processors", index, *late)),
                "final",
                f"never comes: source {', '.join(names)} has no end",
                "use changes, or bound the source (files: watch: false, generator: count)",
            )


RULES = (
    exactly_one_kind,
    one_place_of_code,
    pull_secrets_of_an_image,
    settings_of_kinds,
    options_as_json,
    separate_folders,
    guarantee_of_sinks,
    ackers_for_tracking,
    bounds_of_ackers,
    bounds_of_executors,
    interval_bounds,
    state_copies,
    state_memory,
    final_needs_an_end,
)
