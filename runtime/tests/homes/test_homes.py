"""Every home runs the same checks; the file's own ways to fail are tried beside them."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from millrace.checked import with_checksum
from millrace.errors import NewerFormatError
from millrace.homes import codec, pods
from millrace.homes.documents import Ask, Proposal, Request, RunEvent, ServerTrouble, Status
from millrace.homes.memory import MemoryHome
from millrace.homes.stores import HomeAwayError
from millrace.homes.tuning import Tuning
from millrace.kube.inboxmap import InboxMap, proposal_in, written
from millrace.protocol.types import Member
from millrace.state import journalfiles
from millrace.state.inboxfiles import InboxFiles
from millrace.state.journalfiles import JournalFiles
from millrace.state.viewfile import ViewFile
from millrace.testing import homes


def files(folder):
    """Three functions that give new handles on the files of a folder."""
    return (
        lambda: ViewFile(folder / "view.json"),
        lambda: InboxFiles(folder / "proposal.json", folder / "requests"),
        lambda: JournalFiles(folder / "status.json", folder / "events.jsonl"),
    )


def memory(_folder):
    home = MemoryHome()
    return (lambda: home.view, lambda: home.inbox, lambda: home.journal)


HOMES = {"files": files, "memory": memory}


@pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)
@pytest.mark.parametrize("check", homes.VIEW_STORE, ids=lambda check: check.__name__)
def test_a_view_store(tmp_path, home, check):
    check(home(tmp_path)[0])


@pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)
@pytest.mark.parametrize("check", homes.INBOX, ids=lambda check: check.__name__)
def test_an_inbox(tmp_path, home, check):
    check(home(tmp_path)[1])


@pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)
@pytest.mark.parametrize("check", homes.JOURNAL, ids=lambda check: check.__name__)
def test_a_journal(tmp_path, home, check):
    check(home(tmp_path)[2])


class Torn:
    """A store that believes whatever it is told; the checks must notice."""

    def __init__(self):
        self.home = MemoryHome()

    def read(self):
        return self.home.view.read()

    def cas(self, expected, view):
        return self.home.view.cas(self.home.view.read()[0], view)


def test_the_checks_notice_a_store_that_compares_nothing():
    for check in (
        homes.only_the_expected_version_is_replaced,
        homes.the_same_words_are_another_version,
    ):
        store = Torn()
        with pytest.raises(AssertionError):
            check(lambda store=store: store)


def _claim(folder, answers):
    store = ViewFile(folder / "view.json")
    for _ in range(50):
        version, view = store.read()
        answers.put(store.cas(version, view or homes.VIEW))


def test_processes_never_share_a_version(tmp_path):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=_claim, args=(tmp_path, answers)) for _ in range(3)]
    for child in children:
        child.start()
    found = [answers.get(timeout=60) for _ in range(150)]
    for child in children:
        child.join()
    won = [version for version in found if version is not None]
    assert sorted(won) == list(range(1, len(won) + 1))
    assert ViewFile(tmp_path / "view.json").read()[0] == len(won)


MEMBER = Member("state-0", "run-1", "redis://127.0.0.1:1")

NEWER = {"format": codec.FORMAT + 1, "whatever": 1}


def test_what_a_newer_release_says_is_an_error_and_a_request_of_it_stays(tmp_path, caplog):
    _, inboxes, journals = files(tmp_path)
    (tmp_path / "requests").mkdir()
    for file in ("proposal.json", "status.json", "requests/1.json"):
        (tmp_path / file).write_text(json.dumps(NEWER))
    for read in (inboxes().proposal, journals().status):
        with pytest.raises(NewerFormatError, match=r"\.json: .* has format 3, .* install the"):
            read()
    assert list(inboxes().requests()) == []
    assert "request 1.json is left alone" in caplog.text
    assert (tmp_path / "requests" / "1.json").exists()


def test_a_proposal_of_a_newer_operator_leaves_the_one_before_in_force(caplog):
    first, later = Proposal((MEMBER,), ("acker-0",)), Proposal((MEMBER,), ())
    data = {}
    inbox = InboxMap(SimpleNamespace(name="words-inbox"), lambda: data)

    def look(document):
        data[pods.PROPOSAL] = json.dumps(document)
        return [inbox.proposal() for _ in range(3)]

    assert look(NEWER) == [None] * 3
    assert look(codec.encode(first)) == [first] * 3
    unknown = {**codec.encode(first), "zones": {}}
    del unknown["checksum"]
    for newer in (NEWER, with_checksum(unknown)):
        caplog.clear()
        assert look(newer) == [first] * 3
        (warning,) = caplog.records
        assert "words-inbox is left alone" in warning.getMessage()
    assert look(codec.encode(later)) == [later] * 3


def test_a_field_that_this_release_does_not_know_is_of_a_newer_one():
    document = codec.encode(Proposal((), ()))
    del document["checksum"]
    text = json.dumps(with_checksum({**document, "zones": {}}))
    with pytest.raises(NewerFormatError, match="field 'zones'"):
        codec.decode(Proposal, text)


def test_a_proposal_without_leave_can_be_read_by_a_release_that_knows_of_none():
    assert "leaving" not in codec.encode(Proposal((MEMBER,), ()))
    assert "nodes" not in codec.encode(Proposal((MEMBER,), ()))
    leaving = Proposal((), (), 1, leaving=(MEMBER,))
    assert codec.decode(Proposal, json.dumps(codec.encode(leaving))) == leaving


def test_nodes_are_written_apart_for_releases_that_know_of_none():
    first = Proposal((MEMBER,), ("acker-0",), 3, (("state-0", "node-1"),))
    data = {key: text for key, text in written(first).items() if text is not None}
    assert "nodes" not in json.loads(data[pods.PROPOSAL])
    assert proposal_in(data) == first
    # Those of another proposal say nothing of this one.
    later = replace(first, number=4, nodes=None)
    assert written(later)[pods.NODES] is None
    assert proposal_in({**data, pods.PROPOSAL: written(later)[pods.PROPOSAL]}) == later
    # Earlier operators wrote them into the proposal.
    assert proposal_in({pods.PROPOSAL: json.dumps(codec.encode(first))}) == first


def test_settings_are_written_apart_for_releases_that_know_of_none():
    """Else a driver of such a release would leave this proposal and all later ones alone."""
    said = Proposal((MEMBER,), ("acker-0",), 3, tuning=Tuning(2, 100, 500, 30_000, 4, 5))
    data = {key: text for key, text in written(said).items() if text is not None}
    assert "tuning" not in json.loads(data[pods.PROPOSAL])
    assert proposal_in({pods.PROPOSAL: data[pods.PROPOSAL]}) == replace(said, tuning=None)
    assert proposal_in(data) == said
    # They have a number of their own, and stand with any proposal.
    later = replace(said, number=4)
    assert proposal_in({**data, pods.PROPOSAL: written(later)[pods.PROPOSAL]}) == later
    assert written(replace(said, tuning=None))[pods.TUNING] is None


def test_of_settings_within_a_proposal_and_apart_the_newer_count():
    apart = Proposal((MEMBER,), (), 3, tuning=Tuning(2, 100, 500, 30_000, 4))
    key = written(apart)[pods.TUNING]
    for number, found in ((1, 2), (3, 3)):
        # Earlier operators wrote them into the proposal.
        within = replace(apart, tuning=Tuning(number, 200, 500, 30_000, 4))
        text = json.dumps(codec.encode(within))
        assert proposal_in({pods.PROPOSAL: text}) == within
        read = proposal_in({pods.PROPOSAL: text, pods.TUNING: key})
        assert read.tuning.number == found


def test_settings_that_are_changed_alone_are_seen():
    first = Proposal((MEMBER,), (), 3, tuning=Tuning(1, 100, 500, 30_000, 4))
    second = replace(first, tuning=replace(first.tuning, number=2))
    told = [written(first), written(second)]
    inbox = InboxMap(None, look=lambda: told[0])
    assert inbox.proposal() == first
    del told[0]
    assert inbox.proposal() == second


def test_a_folder_that_cannot_be_read_is_a_home_that_is_away(tmp_path):
    (tmp_path / "proposal.json").mkdir()
    with pytest.raises(HomeAwayError, match=r"proposal\.json.*tried again"):
        InboxFiles(tmp_path / "proposal.json", tmp_path / "requests").proposal()


def test_a_journal_that_cannot_be_written_raises_nothing(tmp_path):
    gone = tmp_path / "gone"
    journal = JournalFiles(gone / "status.json", gone / "events.jsonl")
    journal.add(RunEvent(1.0, "Some", "lost"))
    journal.tell(Status(pid=1))
    gone.mkdir()
    journal.tell(Status(pid=2))
    assert journal.status() == Status(pid=2)


def test_a_large_file_of_events_is_put_aside_once(tmp_path, monkeypatch):
    monkeypatch.setattr(journalfiles, "EVENT_FILE_BYTES", 500)
    journal = files(tmp_path)[2]()
    for number in range(12):
        journal.add(RunEvent(float(number), "Some", "x" * 50))
    aside, now = tmp_path / "events.jsonl.1", tmp_path / "events.jsonl"
    times = [json.loads(line)["time"] for f in (aside, now) for line in f.read_text().splitlines()]
    assert times == [float(n) for n in range(12)][-len(times) :]
    assert aside.stat().st_size <= 700


def test_files_are_their_users_alone_whatever_the_umask_is(tmp_path):
    before = os.umask(0)
    try:
        _, inboxes, journals = files(tmp_path)
        inboxes().propose(Proposal((MEMBER,), ()))
        inboxes().ask(Request(Ask.STOP))
        journals().tell(Status())
        journals().add(RunEvent(1.0, "Some", "x"))
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert not list(tmp_path.rglob("*.new"))


def test_texts_for_people_can_be_read_whatever_name_of_a_file_is_in_them():
    """One that is not UTF-8 is a text with halves of characters, which JSON takes and nobody
    reads."""
    said, written_out = "caf\udce9.bin is broken", r"caf\udce9.bin is broken"
    event = RunEvent(1.0, "SinkAway", said)
    assert codec.decode_line(RunEvent, codec.encode_line(event).encode()).text == written_out
    trouble = ServerTrouble("state-0", "StateServerAway", said)
    told = Status(state="failed", reason=said, troubles=(trouble,), refused=said)
    found = codec.decode(Status, json.dumps(codec.encode(told)))
    assert (found.reason, found.refused) == (written_out, written_out)
    assert found.troubles == (replace(trouble, text=written_out),)
