"""Opens the places that a driver's settings name."""

from __future__ import annotations

from pathlib import Path

from millrace.homes.memory import memory_home
from millrace.homes.settings import InboxPlace, JournalPlace, MemoryPlace, ViewPlace
from millrace.homes.stores import Inbox, Journal, ViewStore
from millrace.state.inboxfiles import InboxFiles
from millrace.state.journalfiles import JournalFiles
from millrace.state.viewfile import ViewFile


def open_view(place: ViewPlace) -> ViewStore:
    """The view store of a place."""
    if isinstance(place, MemoryPlace):
        return memory_home(place.name).view
    return ViewFile(Path(place.path))


def open_inbox(place: InboxPlace) -> Inbox:
    """The inbox of a place."""
    if isinstance(place, MemoryPlace):
        return memory_home(place.name).inbox
    return InboxFiles(Path(place.proposal), Path(place.requests))


def open_journal(place: JournalPlace) -> Journal:
    """The journal of a place."""
    if isinstance(place, MemoryPlace):
        return memory_home(place.name).journal
    return JournalFiles(Path(place.status), Path(place.events))
