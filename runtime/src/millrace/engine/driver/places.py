"""Opens the places that a driver's settings name."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.homes.memory import memory_home
from millrace.homes.settings import (
    ConfigMapPlace,
    InboxPlace,
    JournalPlace,
    MemoryPlace,
    ViewPlace,
)
from millrace.homes.stores import Inbox, Journal, ViewStore
from millrace.state.inboxfiles import InboxFiles
from millrace.state.journalfiles import JournalFiles
from millrace.state.viewfile import ViewFile

if TYPE_CHECKING:
    from millrace.kube.configmaps import ConfigMap

# What ConfigMaps need is installed in pods alone, and takes a second to load.


def open_view(place: ViewPlace) -> ViewStore:
    """The view store of a place."""
    if isinstance(place, MemoryPlace):
        return memory_home(place.name).view
    if isinstance(place, ConfigMapPlace):
        from millrace.kube.viewmap import ViewMap

        return ViewMap(_config_map(place))
    return ViewFile(Path(place.path))


def open_inbox(place: InboxPlace) -> Inbox:
    """The inbox of a place."""
    if isinstance(place, MemoryPlace):
        return memory_home(place.name).inbox
    if isinstance(place, ConfigMapPlace):
        from millrace.kube.inboxmap import InboxMap
        from millrace.kube.watching import WatchedMap

        config_map = _config_map(place)
        return InboxMap(config_map, WatchedMap(config_map).data)
    return InboxFiles(Path(place.proposal), Path(place.requests))


def open_journal(place: JournalPlace) -> Journal:
    """The journal of a place."""
    if isinstance(place, MemoryPlace):
        return memory_home(place.name).journal
    if isinstance(place, ConfigMapPlace):
        from millrace.kube.journalmap import JournalMap

        return JournalMap(_config_map(place))
    return JournalFiles(Path(place.status), Path(place.events))


@lru_cache
def _config_map(place: ConfigMapPlace) -> ConfigMap:
    from millrace.kube.configmaps import ConfigMap, own_api

    return ConfigMap(own_api(), place.namespace, place.name)
