"""Opens the places that a driver's settings name."""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.errors import WorkFolderError
from millrace.homes import pods
from millrace.homes.memory import memory_home
from millrace.homes.settings import (
    ConfigMapPlace,
    DriverSettings,
    InboxPlace,
    JournalPlace,
    MemoryPlace,
    ViewPlace,
)
from millrace.homes.stores import Inbox, Journal, ViewStore
from millrace.snapshots import timelines
from millrace.snapshots.timelines import Fork
from millrace.state.inboxfiles import InboxFiles
from millrace.state.journalfiles import JournalFiles
from millrace.state.viewfile import ViewFile

if TYPE_CHECKING:
    from millrace.kube.configmaps import ConfigMap
    from millrace.kube.viewmap import ViewMap

# What ConfigMaps need is installed in pods alone, and takes a second to load.


def own_word() -> str:
    """The name of a write of this pod's: whoever sees it knows which driver holds the view."""
    return f"{os.environ.get(pods.POD_NAME, '')}.{secrets.token_hex(16)}"


def open_view(place: ViewPlace) -> ViewStore:
    """The view store of a place."""
    if isinstance(place, MemoryPlace):
        return memory_home(place.name).view
    if isinstance(place, ConfigMapPlace):
        from millrace.kube.viewmap import ViewMap

        return ViewMap(_config_map(place), own_word)
    return ViewFile(Path(place.path))


def open_marked_view(place: ViewPlace) -> ViewMap:
    """The view store of a pod, with what stands beside the view. Raises ``WorkFolderError`` for
    another kind of place: there a restore is no driver's business."""
    if not isinstance(place, ConfigMapPlace):
        raise WorkFolderError(f"the view of a pod is in a ConfigMap, not in {place}")
    from millrace.kube.viewmap import ViewMap

    return ViewMap(_config_map(place), own_word)


def restores_noted(settings: DriverSettings) -> tuple[Fork, ...]:
    """The restores that a topology has gone through. Raises ``MillraceError``."""
    if isinstance(settings.view, ConfigMapPlace):
        from millrace.kube.viewmap import ViewMap

        return timelines.decoded(ViewMap(_config_map(settings.view)).beside(pods.TIMELINES))
    return timelines.read(Path(settings.workdir))


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
