"""The topology as it was last accepted in a work folder (``homes.accepted``), as a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from millrace import checked
from millrace.errors import NewerFormatError, WorkFolderError
from millrace.homes.accepted import Accepted, accept, accepted_from
from millrace.local.files import write_json

FORMAT = 2
"""From 2 on there is a checksum."""


def read_accepted(file: Path, topology: Path) -> Accepted | None:
    """What a work folder last accepted, None if nothing; ``topology`` is where older releases kept
    it. Raises ``NewerFormatError``, ``WorkFolderError``."""
    source = file if file.exists() else topology
    try:
        document = checked.parse(source.read_bytes())
        if source is topology and checked.CHECKSUM in document:
            raise checked.DamagedError(f"{file.name} beside it is gone")
        if source is topology:
            return accept(None, document)
        if document["format"] > FORMAT:
            raise NewerFormatError(
                f"{file}: has format {document['format']}, this release reads up to {FORMAT}; use "
                "the newer release"
            )
        document = checked.verified(document, required=document["format"] >= FORMAT)
        return accepted_from(document)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, OSError, checked.DamagedError) as error:
        what = str(error) if isinstance(error, checked.DamagedError) else repr(error)
        raise WorkFolderError(
            f"{source}: cannot be read ({what}); bring it back from a copy, or start over with "
            "--fresh"
        ) from error


def write_accepted(file: Path, accepted: Accepted) -> None:
    """Replace the file, durably. Raises ``OSError``."""
    write_json(file, checked.with_checksum({"format": FORMAT, **asdict(accepted)}))
