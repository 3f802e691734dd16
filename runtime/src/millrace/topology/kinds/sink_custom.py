"""The kind ``custom`` of sinks: a class of the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.topology.kinds.base import SinkKind, UserCode
from millrace.topology.parts import CustomPart
from millrace.topology.problems import Problem, format_path

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component


class CustomSinkKind(SinkKind[CustomPart]):
    """A class in the topology's own code, which says itself what it can hold."""

    name = "custom"
    meaning = "A sink class of your own."
    settings = CustomPart
    fillers = {"class": "unnamed:unnamed"}
    lasting = False

    def summary(self, settings: CustomPart) -> str:
        return f"custom {settings.target}"

    def place(self, settings: CustomPart, folder: Path) -> str:
        return settings.target

    def target(self, settings: CustomPart) -> str:
        return settings.target

    def options(self, settings: CustomPart) -> str:
        return json.dumps(settings.options)

    def user_code(self, settings: CustomPart) -> UserCode:
        return UserCode(("class",), settings.target, "millrace.sinks.base.Sink")

    def check(self, settings: CustomPart, component: Component, facts: Facts) -> Iterator[Problem]:
        """The class must be able to give the guarantee."""
        wanted = facts.topology.spec.guarantee
        given = getattr(facts.classes.get(component.name), "guarantees", None)
        if isinstance(given, tuple | list | set | frozenset):
            names = sorted(str(getattr(g, "value", g)) for g in given)
            if wanted.value not in names:
                yield Problem(
                    format_path((*component.path, "custom", "class")),
                    settings.target,
                    f"cannot give {wanted.value}",
                    f"set spec.guarantee to {' or '.join(names)}" if names else "use another sink",
                )


CUSTOM_SINK = CustomSinkKind()
