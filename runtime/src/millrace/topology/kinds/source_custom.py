"""The kind ``custom`` of sources: a class of the user's own."""

from __future__ import annotations

import json

from millrace.topology.kinds.base import (
    OPENED,
    OTHER_SOURCE,
    Effect,
    FieldEdit,
    SourceKind,
    UserCode,
)
from millrace.topology.parts import CustomPart


class CustomSourceKind(SourceKind[CustomPart]):
    """A class in the topology's own code."""

    name = "custom"
    meaning = "A source class of your own."
    settings = CustomPart
    fillers = {"class": "unnamed:unnamed"}
    edits = (
        FieldEdit(
            "class",
            Effect.REFUSED,
            f"the read position belongs to the old class; {OTHER_SOURCE}",
        ),
        FieldEdit("", Effect.RESTART, OPENED),
    )

    def summary(self, settings: CustomPart) -> str:
        return f"custom {settings.target}"

    def target(self, settings: CustomPart) -> str:
        return settings.target

    def options(self, settings: CustomPart) -> str:
        return json.dumps(settings.options)

    def user_code(self, settings: CustomPart) -> UserCode:
        return UserCode(("class",), settings.target, "millrace.sources.base.Source")


CUSTOM_SOURCE = CustomSourceKind()
