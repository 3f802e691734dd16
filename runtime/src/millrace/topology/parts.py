"""What the model's parts and the kinds' settings are made of."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from millrace.topology.scalars import ComponentName, Flag, Target, Text


class Role(str, Enum):
    """What a component is to the others; what more it is, its kind says."""

    SOURCE = "source"
    PROCESSOR = "processor"
    SINK = "sink"


class Guarantee(str, Enum):
    """What is promised for each root."""

    AT_MOST_ONCE = "AtMostOnce"
    AT_LEAST_ONCE = "AtLeastOnce"
    EXACTLY_ONCE = "ExactlyOnce"


class OnMissing(str, Enum):
    """What becomes of a tuple of which the table has no row."""

    KEEP = "Keep"
    DROP = "Drop"
    FAIL = "Fail"


class Part(BaseModel):
    """Base of everything in a topology: immutable, camelCase in files, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class Input(Part):
    """An edge: the tuples of one producer."""

    producer: ComponentName = Field(
        alias="from", description="Name of the source or processor whose tuples arrive here."
    )
    key: tuple[Text, ...] = Field(
        (), description="Columns by which tuples are brought together. Needed by stateful parts."
    )
    broadcast: Flag = Field(
        False, description="Every partition of the consumer gets every tuple. Excludes a key."
    )
    columns: dict[Text, Text] = Field(
        {},
        description="Columns as they are here: the producer's, e.g. {user: uid}. Others are left "
        "out. Default: all, under their own names. The key names columns as they are here.",
    )


class CustomPart(Part):
    """A class of your own."""

    target: Target = Field(alias="class", description='The class as "module:Class".')
    options: dict[str, Any] = Field(
        {},
        description="Handed to the class as they are; in place of {secretRef: {name: …, key: …}} "
        "it gets the value of that key of a Secret.",
    )
