"""Edits of a run that goes on: settings that its driver takes without a restart.

The command line leaves the topology in ``edit.json`` of the work folder. The supervisor, who alone
writes what is accepted, takes it: first the files that a driver begins with, then a proposal, which
the one that runs reads (``homes.tuning``)::

    edit.json --> scale.json, where numbers of servers or ackers are edited
              --> accepted.json, topology.json, driver.json --> proposal.json --> the driver

Whoever dies in between is followed by a driver that begins with what was accepted; a run that ends
forgets what it was asked for and has not taken.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from millrace.errors import MillraceError, NewerFormatError
from millrace.homes import codec
from millrace.homes.documents import EditAsked, Scale
from millrace.homes.tuning import SCALED, Tuning, tuned_fields
from millrace.local.accepted import read_accepted
from millrace.local.files import write_json
from millrace.local.takeover import current_holder
from millrace.local.workdir import WorkFolder
from millrace.topology.edits import Edit, classify
from millrace.topology.kinds.base import Effect
from millrace.topology.model import StreamTopology

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Editing:
    """What a supervisor needs to take edits: ``asked`` is what was asked for last, or None;
    ``take`` makes it what is in force, and gives its edits and settings for the driver, None where
    there is no edit. It raises ``MillraceError`` where that cannot be, and ``OSError``. ``tuning``
    is what is in force at first, where a driver may have begun without it."""

    asked: Callable[[], EditAsked | None]
    take: Callable[[EditAsked], tuple[list[Edit], Tuning | None]]
    tuning: Tuning | None = None


def between(before: StreamTopology, wanted: StreamTopology) -> list[Edit]:
    """The edits from one topology to another, all of which a run takes while it goes on. Raises
    ``MillraceError`` with those that it cannot take."""
    edits = classify(before, wanted)
    refused = [edit for edit in edits if edit.effect is Effect.REFUSED]
    if refused:
        raise MillraceError(_named(refused, "is refused"))
    taken = tuned_fields(wanted) | SCALED
    rest = [one for one in edits if one.effect is not Effect.NONE and one.path not in taken]
    if rest:
        what = "needs a restart: millrace run takes the run over, behind what is sealed"
        raise MillraceError(_named(rest, what))
    return edits


def size_of(edits: Iterable[Edit]) -> Scale:
    """What edits make of the numbers of servers and ackers: the supervisor follows that without
    its driver, as what ``millrace scale`` asks for."""
    new = {edit.path: edit.new for edit in edits if edit.path in SCALED}
    return Scale(new.get("spec.stateServers.replicas"), new.get("spec.ackers.replicas"))


def _named(edits: Iterable[Edit], what: str) -> str:
    return f"nothing is changed, since this {what}:\n" + "\n".join(str(edit) for edit in edits)


def ask(folder: WorkFolder, wanted: StreamTopology) -> list[Edit]:
    """Ask the run of a work folder to take a topology's edits; gives them. Nothing is asked where
    there are none. Raises ``MillraceError`` where no run is alive or it cannot take one of them."""
    name = folder.identity.name
    if current_holder(folder.path) is None:
        raise MillraceError(f"{name} is not running; millrace run takes the edits of its file")
    edits = between(in_force(folder), wanted)
    if edits:
        asked = EditAsked(wanted.document(), secrets.token_hex(8))
        write_json(folder.edit, codec.encode(asked))
    return edits


def await_taken(folder: WorkFolder, wanted: StreamTopology, timeout_s: float) -> bool:
    """Wait until a topology is in force and proposed to the driver, or the run has ended; whether
    it is."""
    end_s = time.monotonic() + timeout_s
    while not _proposed(folder, wanted):
        if time.monotonic() >= end_s or current_holder(folder.path) is None:
            return False
        time.sleep(_LOOK_S)
    return True


def _proposed(folder: WorkFolder, wanted: StreamTopology) -> bool:
    accepted = read_accepted(folder.accepted, folder.topology)
    if accepted is None or accepted.topology != wanted.document():
        return False
    proposal = folder.inbox.proposal()
    tuning = proposal.tuning if proposal is not None else None
    return tuning is not None and tuning.number >= accepted.tuned


def in_force(folder: WorkFolder) -> StreamTopology:
    """The topology that a work folder accepted last. Raises ``MillraceError``."""
    accepted = read_accepted(folder.accepted, folder.topology)
    if accepted is None:
        raise MillraceError(f"{folder.path}: no topology has run there")
    try:
        return StreamTopology.model_validate(accepted.topology)
    except ValidationError as error:
        raise NewerFormatError(
            f"{folder.path}: another release accepted what this one does not know "
            f"({error.error_count()} problems); use that release"
        ) from error
