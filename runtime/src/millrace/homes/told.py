"""What a driver is told by whoever starts it: two files, which it reads before all else."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from millrace import checked
from millrace.errors import NewerFormatError, WorkFolderError
from millrace.homes.settings import DriverSettings, decode_settings
from millrace.topology.model import StreamTopology

_AGAIN = "start the run again with `millrace run`"


def read_settings(file: Path) -> DriverSettings:
    """What the supervisor or operator has left for a driver.

    Raises ``WorkFolderError``, ``NewerFormatError``.
    """
    try:
        return decode_settings(file.read_bytes(), file.parent)
    except NewerFormatError as error:
        raise NewerFormatError(f"{file}: {error}") from error
    except (OSError, checked.DamagedError) as error:
        raise WorkFolderError(f"{file}: {error}; {_AGAIN}") from error


def read_topology(file: Path) -> StreamTopology:
    """The topology that a driver is to run. Raises ``WorkFolderError``."""
    try:
        return StreamTopology.model_validate(checked.decode(file.read_bytes()))
    except ValidationError as error:
        raise WorkFolderError(
            f"{file}: the topology has {error.error_count()} problems; {_AGAIN}"
        ) from None
    except (OSError, checked.DamagedError) as error:
        raise WorkFolderError(f"{file}: {error}; {_AGAIN}") from error
