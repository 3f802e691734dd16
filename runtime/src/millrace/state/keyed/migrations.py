"""State of other columns than today's, brought into form as its objects are read.

The objects stay as they are: what is read is converted each time, by a function of the user's that
gives the same for the same, until a base with today's columns takes their place. So nothing depends
on where and how often that happens, and whoever dies meanwhile has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.errors import error_text, is_order
from millrace.state.errors import StateMigrationError

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Migration:
    """From dicts of these columns to dicts of today's."""

    columns: tuple[pa.Field, ...]
    function: Callable[[Row], Mapping[str, Any] | None]


Watch = Callable[[], AbstractContextManager[Callable[[], None]]]
"""Around calls of user code; what it gives is to be called ahead of each."""


@contextmanager
def unwatched() -> Iterator[Callable[[], None]]:
    """Nobody looks whether the calls return."""
    yield lambda: None


@dataclass(frozen=True, slots=True)
class Migrations:
    """All that a processor has; ``watch`` sees to calls that do not return."""

    processor: str = ""
    known: tuple[Migration, ...] = ()
    watch: Watch = unwatched

    def find(self, columns: Sequence[pa.Field]) -> Migration | None:
        """The one from these columns."""
        return next((one for one in self.known if one.columns == tuple(columns)), None)

    def convert(
        self,
        migration: Migration,
        held: Row,
        names: Sequence[str],
        problem_of: Callable[[Row], str | None],
        key: Callable[[], str],
    ) -> Row:
        """A key's dict in today's columns ``names``. Raises ``StateMigrationError`` with the key
        where the function fails or gives what these cannot hold (``problem_of``)."""
        try:
            made = migration.function(held)
        except BaseException as error:
            if is_order(error):
                raise
            raise self._failed(migration, key(), f"raised {error_text(error)}") from error
        if made is None:
            return dict.fromkeys(names)
        if not isinstance(made, Mapping):
            raise self._failed(migration, key(), f"gave a {type(made).__name__}, not a dict")
        row = dict(made)
        problem = problem_of(row)
        if problem is not None:
            raise self._failed(migration, key(), f"gave a dict that is no state: {problem}")
        return {name: row.get(name) for name in names}

    def _failed(self, migration: Migration, key: str, what: str) -> StateMigrationError:
        name = getattr(migration.function, "__qualname__", repr(migration.function))
        columns = ", ".join(f"{field.name} {field.type}" for field in migration.columns)
        return StateMigrationError(
            f"processor {self.processor!r}: the state of key {key}, kept as ({columns}), cannot be "
            f"migrated: {name} {what}; mend it and run again, nothing is lost"
        )


NO_MIGRATIONS = Migrations()
