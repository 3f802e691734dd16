"""Durations as people write them: ``"30s"``, ``"100ms"``, ``"1m30s"``, ``"1.5s"``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_TERM = r"[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h)"
PATTERN = rf"^(?:{_TERM})+$"
"""What a duration looks like, for schemas."""

FORMS = "forms"
"""In a type's schema: a sentence that ends up in the description of each of its fields."""

LONGEST_MS = 366 * 24 * _UNITS_MS["h"]
"""No wait in a topology is meant to be longer, and clocks of systems end somewhere."""

_LONGEST_TEXT = 100


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A positive length of time in whole milliseconds."""

    milliseconds: int

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Reads ``"1m30s"`` and the like; raises ``ValueError`` with what is wrong."""
        if len(text) > _LONGEST_TEXT or not re.fullmatch(PATTERN, text):
            raise ValueError("is not a duration")
        terms = re.findall(r"([0-9.]+)(ms|s|m|h)", text)
        total = sum((Decimal(number) * _UNITS_MS[unit] for number, unit in terms), Decimal(0))
        if total <= 0:
            raise ValueError("must be longer than nothing")
        if total != total.to_integral_value():
            raise ValueError("is finer than a millisecond")
        return cls(int(total))

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return self.milliseconds / 1000

    def __str__(self) -> str:
        """Canonical form: a whole number of the largest unit that divides it."""
        unit = max(
            (u for u in _UNITS_MS if self.milliseconds % _UNITS_MS[u] == 0),
            key=lambda u: _UNITS_MS[u],
        )
        return f"{self.milliseconds // _UNITS_MS[unit]}{unit}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        forms = 'Such as "100ms", "30s" or "1m30s".'
        return {"type": "string", "pattern": PATTERN, FORMS: forms}

    @classmethod
    def _validated(cls, value: Any) -> Duration:
        if isinstance(value, Duration):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise PydanticCustomError(
                "duration",
                "is a bare number",
                {"remedy": f'write it with its unit, e.g. "{value}s" or "{value}ms"'},
            )
        try:
            if not isinstance(value, str):
                raise ValueError("is not a duration")
            found = cls.parse(value)
            if found.milliseconds > LONGEST_MS:
                raise ValueError("is longer than a year")
            return found
        except ValueError as error:
            raise PydanticCustomError(
                "duration",
                "{reason}",
                {
                    "reason": str(error),
                    "remedy": 'write a number and ms, s, m or h, e.g. "100ms", "30s" or "1m30s"',
                },
            ) from None
