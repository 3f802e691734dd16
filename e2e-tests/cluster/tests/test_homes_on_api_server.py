"""ConfigMaps as homes, on a real API server: the checks of every home, lost answers, rights."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.errors import NewerFormatError, ProtocolError
from millrace.homes import codec, pods
from millrace.homes.documents import Ask, Proposal, Request, RunEvent, Status
from millrace.homes.stores import HomeAwayError
from millrace.ids import Execution
from millrace.kube import journalmap, watching
from millrace.kube.configmaps import Api, ApiRefusedError, ConfigMap, by_kubeconfig
from millrace.kube.inboxmap import InboxMap
from millrace.kube.journalmap import JournalMap
from millrace.kube.viewmap import ViewMap
from millrace.kube.watching import WatchedMap
from millrace.testing import homes
from millrace_e2e import kubeapi
from millrace_e2e.waiting import until

_NAMES = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubeapi.ApiServer]:
    with kubeapi.serving(tmp_path_factory.mktemp("api") / "server") as server:
        yield server


@pytest.fixture
def api(server: kubeapi.ApiServer) -> Api:
    return by_kubeconfig(file=str(server.kubeconfig))


@pytest.fixture
def name() -> str:
    """Of a ConfigMap that is not there yet."""
    return f"map-{next(_NAMES)}"


@pytest.fixture
def config_map(api: Api, name: str) -> ConfigMap:
    return ConfigMap(api, "default", name)


@pytest.fixture(params=["made by the store", "made by the operator"])
def maps(request, server, config_map, name):
    """A function that gives a new handle, as another process would have one."""
    if request.param == "made by the operator":
        assert config_map.create({})
    return lambda: ConfigMap(by_kubeconfig(file=str(server.kubeconfig)), "default", name)


@pytest.mark.parametrize("check", homes.VIEW_STORE, ids=lambda check: check.__name__)
def test_a_view_store(maps, check):
    check(lambda: ViewMap(maps()))


@pytest.mark.parametrize("check", homes.INBOX, ids=lambda check: check.__name__)
def test_an_inbox(maps, check):
    check(lambda: InboxMap(maps()))


@pytest.mark.parametrize("check", homes.JOURNAL, ids=lambda check: check.__name__)
def test_a_journal(maps, check):
    check(lambda: JournalMap(maps(), at_once=True))


# -- the view


class Lossy(ConfigMap):
    """Writes whose answers, or which themselves, are lost, as ``fates`` says of one after another:
    what is sent to the server is real."""

    def __init__(self, api, name, fates):
        super().__init__(api, "default", name)
        self.fates = list(fates)
        self.late = []

    def replace(self, expected, data):
        return self._sent(lambda: ConfigMap.replace(self, expected, data))

    def create(self, data):
        return self._sent(lambda: ConfigMap.create(self, data))

    def _sent(self, write):
        fate = self.fates.pop(0) if self.fates else "fine"
        if fate == "never arrives":
            raise HomeAwayError("nothing came")
        if fate == "arrives late":
            self.late.append(write)
            raise HomeAwayError("nothing came")
        answer = write()
        if fate == "answer lost":
            raise HomeAwayError("nothing came")
        return answer


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("fate", ["answer lost", "never arrives"])
def test_a_lost_answer_is_settled_by_reading(api, name, config_map, before, fate):
    """At the first view, and at one that replaces another."""
    store = ViewMap(config_map)
    for version in range(before):
        assert store.cas(version, homes.VIEW) == version + 1
    wanted = replace(homes.VIEW, execution=Execution(7))
    assert ViewMap(Lossy(api, name, [fate])).cas(before, wanted) == before + 1
    assert store.read() == (before + 1, wanted)
    assert store.cas(before, homes.VIEW) is None


def test_a_write_that_arrives_late_counts_once_or_not_at_all(api, name, config_map):
    store = ViewMap(config_map)
    store.cas(0, homes.VIEW)
    slow = Lossy(api, name, ["arrives late"])
    wanted = replace(homes.VIEW, execution=Execution(2))
    assert ViewMap(slow).cas(1, wanted) == 2
    after = replace(homes.VIEW, execution=Execution(3))
    assert store.cas(2, after) == 3
    assert [write() for write in slow.late] == [False]
    assert store.read() == (3, after)


def test_another_write_of_the_same_words_is_not_taken_for_ones_own(api, name, config_map):
    """Two drivers may write equal views: the word of the write tells them apart."""
    store = ViewMap(config_map)
    store.cas(0, homes.VIEW)
    lossy = Lossy(api, name, ["never arrives"])
    read, others = lossy.read, iter([None])

    def read_behind_another():
        if len(lossy.fates) == 0 and next(others, "done") is None:
            assert store.cas(1, homes.VIEW) == 2
        return read()

    lossy.read = read_behind_another
    assert ViewMap(lossy).cas(1, homes.VIEW) is None


def test_what_cannot_be_settled_is_said_to_be_unknown(api, name, config_map):
    """The write may have come between two that are seen."""
    store = ViewMap(config_map)
    store.cas(0, homes.VIEW)
    lossy = Lossy(api, name, ["answer lost"])
    read, reads = lossy.read, iter(range(10))

    def read_behind_others():
        if next(reads) == 1:
            assert store.cas(2, homes.VIEW) == 3
        return read()

    lossy.read = read_behind_others
    with pytest.raises(HomeAwayError, match="version 2 was written is not known"):
        ViewMap(lossy).cas(1, homes.VIEW)
    always = ["never arrives"] * 100
    with pytest.raises(HomeAwayError, match="version 4 was written is not known"):
        ViewMap(Lossy(api, name, always)).cas(3, homes.VIEW)


def test_labels_of_others_hinder_no_driver(api, config_map, name):
    store = ViewMap(config_map)
    store.cas(0, homes.VIEW)
    seen = config_map.read()
    path = f"/api/v1/namespaces/default/configmaps/{name}"
    labels = {"metadata": {"labels": {"app.kubernetes.io/part-of": "millrace"}}}
    api.call("PATCH", path, labels, kind="application/merge-patch+json")
    assert config_map.read().resource_version != seen.resource_version
    assert store.read() == (1, homes.VIEW)
    assert store.cas(1, homes.VIEW) == 2


@pytest.mark.parametrize("data", [{"view": "{}"}, {"version": "x", "view": "{}"}, {"version": "3"}])
def test_what_is_no_view_is_an_error(config_map, data):
    config_map.create(data)
    with pytest.raises(ProtocolError):
        ViewMap(config_map).read()


# -- the inbox


def test_operator_driver_and_commands_write_keys_of_their_own(config_map):
    config_map.create({"somebody": "else's"})
    inbox = InboxMap(config_map)
    wanted = Proposal((homes.MEMBER,), ("acker-0",))
    tokens, errors = [], []

    def ask():
        try:
            tokens.extend(inbox.ask(homes.REPLAY) for _ in range(5))
        except BaseException as error:  # noqa: BLE001 told by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        inbox.propose(wanted)
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(asked.token for asked in inbox.requests()) == sorted(tokens)
    for token in tokens:
        inbox.done(token)
    assert inbox.proposal() == wanted
    assert set(config_map.read().data) == {"somebody", pods.PROPOSAL}


def test_a_request_that_is_done_is_not_heard_again_though_the_watch_lags(config_map):
    inbox = InboxMap(config_map)
    token = inbox.ask(Request(Ask.STOP))
    seen = config_map.read().data
    slow = InboxMap(config_map, lambda: seen)
    assert [asked.token for asked in slow.requests()] == [token]
    slow.done(token)
    assert list(slow.requests()) == []
    assert list(inbox.requests()) == []


def test_what_a_newer_release_says_stays_and_what_is_damaged_goes(config_map, caplog):
    newer = json.dumps({"format": codec.FORMAT + 1, "whatever": 1})
    data = {pods.PROPOSAL: newer, "request.1": newer, "request.2": "{", pods.STATUS: newer}
    config_map.create(data)
    assert InboxMap(config_map).proposal() is None
    assert "the one before stays in force" in caplog.text
    with pytest.raises(NewerFormatError, match="has format"):
        JournalMap(config_map).status()
    assert list(InboxMap(config_map).requests()) == []
    assert "request 1 is left alone" in caplog.text
    assert "request 2 is dropped" in caplog.text
    assert set(config_map.read().data) == {pods.PROPOSAL, "request.1", pods.STATUS}


# -- the journal


class Counting(ConfigMap):
    """Counts the writes that reach the server."""

    written = 0

    def replace(self, expected, data):
        self.written += 1
        return super().replace(expected, data)

    def create(self, data):
        self.written += 1
        return super().create(data)


def test_figures_are_written_rarely_however_often_they_are_told(api, name):
    counting = Counting(api, "default", name)
    journal = JournalMap(counting)
    began_s = time.monotonic()
    for sealed in range(5000):
        journal.tell(Status(pid=1, state="running", sealed=sealed))
    journal.flush()
    periods = (time.monotonic() - began_s) / journalmap.FIGURES_S
    assert journal.status().sealed == 4999
    # One at the first, one for each period, one by the flush.
    assert counting.written <= 3 + periods


def test_an_event_and_another_state_are_told_soon(config_map, monkeypatch):
    monkeypatch.setattr(journalmap, "FIGURES_S", 3600.0)
    journal = JournalMap(config_map)
    follower = JournalMap(config_map).follow()
    journal.tell(Status(state="starting"))
    until(lambda: journal.status().state == "starting", "first figures", 30)
    journal.tell(Status(state="running"))
    until(lambda: journal.status().state == "running", "another state", 30)
    event = RunEvent(1.0, "Some", "text")
    journal.add(event)
    found: list[RunEvent] = []
    until(lambda: found.extend(follower.new()) or found, "the event", 30)
    assert found == [event]


def test_events_are_bounded_and_the_newest_stay(config_map, monkeypatch):
    monkeypatch.setattr(journalmap, "EVENT_BYTES", 2000)
    journal = JournalMap(config_map, at_once=True)
    follower = journal.follow()
    for number in range(40):
        journal.add(RunEvent(float(number), "Some", "x" * 50))
    assert len(config_map.read().data[pods.EVENTS].encode()) <= 2000
    told = [event.time for event in follower.new()]
    assert told == [float(number) for number in range(40)][-len(told) :]
    assert len(told) > 5


def test_an_event_whose_answer_was_lost_is_there_once(api, name, config_map):
    journal = JournalMap(Lossy(api, name, ["answer lost"]), at_once=True)
    follower = JournalMap(config_map).follow()
    event = RunEvent(1.0, "Some", "text")
    journal.add(event)
    journal.flush()
    assert list(follower.new()) == [event]


# -- watching, rights, an API server that is away


def test_a_change_is_known_by_the_watch_before_anything_is_read_again(api, config_map, monkeypatch):
    monkeypatch.setattr(watching, "RESYNC_S", 3600.0)
    config_map.create({"a": "1"})
    watched = WatchedMap(config_map)
    try:
        assert watched.data() == {"a": "1"}
        for value in ("2", "3"):
            config_map.merge({"a": value})
            until(lambda value=value: watched.data() == {"a": value}, "the change", 30)
        api.call("DELETE", f"/api/v1/namespaces/default/configmaps/{config_map.name}")
        until(lambda: watched.look() is None, "the deletion", 30)
    finally:
        watched.close()


def test_a_watch_that_is_silent_is_not_believed_for_long(config_map, monkeypatch):
    class Silent(ConfigMap):
        def changes(self, since, lasting_s, silence_s):
            threading.Event().wait(60)
            return iter(())

    monkeypatch.setattr(watching, "RESYNC_S", 0.2)
    config_map.create({"a": "1"})
    silent = Silent(config_map._api, "default", config_map.name)
    watched = WatchedMap(silent)
    assert watched.data() == {"a": "1"}
    config_map.merge({"a": "2"})
    until(lambda: watched.data() == {"a": "2"}, "the change", 30)
    watched.close()


def test_a_refusal_that_lasts_names_what_is_refused(config_map):
    with pytest.raises(ApiRefusedError, match="data"):
        config_map.create({"no/key": "x"})


def test_a_user_without_rights_waits_for_them(server, name, tmp_path):
    file = json.loads(server.kubeconfig.read_text())
    file["users"][0]["user"] = {"token": "nobody's"}
    other = tmp_path / "kubeconfig"
    other.write_text(json.dumps(file))
    stranger = ConfigMap(by_kubeconfig(file=str(other)), "default", name)
    with pytest.raises(HomeAwayError, match="Unauthorized"):
        stranger.read()


def test_an_api_server_that_is_away_is_waited_for(tmp_path: Path):
    with kubeapi.serving(tmp_path / "own") as own:
        config_map = ConfigMap(by_kubeconfig(file=str(own.kubeconfig)), "default", "view")
        store = ViewMap(config_map)
        journal = JournalMap(config_map, at_once=True)
        assert store.cas(0, homes.VIEW) == 1
        own.end()
        for ask in (store.read, lambda: store.cas(1, homes.VIEW), InboxMap(config_map).proposal):
            with pytest.raises(HomeAwayError, match=r"tried again|not known"):
                ask()
        journal.add(RunEvent(1.0, "Some", "lost"))
        journal.tell(Status(pid=1))
