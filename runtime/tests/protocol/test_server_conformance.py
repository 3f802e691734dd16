"""The simulated state server gives the answers of a real one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.protocol.server import (
    MISSING,
    OK,
    Found,
    Listed,
    NotOwner,
    Reason,
    Stamped,
    TagTooLow,
)
from millrace.protocol.types import Stamp, Tag
from millrace.simulate.parts.server import ServerModel
from millrace.state.client import StateClient
from millrace_e2e.embedded import started

UID = "conformance"
NAMES = [f"{n}.1.0.0.0.1/state/counts" for n in range(6)]


class Real:
    """A real server on a folder, spoken to under any run id, as late messages are."""

    def __init__(self, folder: Path, uid: str) -> None:
        self._folder, self._uid = folder, uid
        self._clients: dict[str, StateClient] = {}
        self.server = started(folder)

    @property
    def run_id(self) -> str:
        return self.server.address.run_id

    def client(self, run_id: str) -> StateClient:
        if run_id not in self._clients:
            address = replace(self.server.address, run_id=run_id)
            self._clients[run_id] = StateClient(address, self._uid)
        return self._clients[run_id]

    def kill_and_start(self) -> None:
        self.server.kill()
        self.stop()
        self.server = started(self._folder)

    def stop(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self.server.stop()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Real]:
    server = Real(tmp_path / "state", UID)
    yield server
    server.stop()


def _command(dice: random.Random, held: Stamp | None) -> tuple[str, tuple[Any, ...]]:
    """A random operation and its arguments behind the run id; mostly under the stamp in effect."""
    stamp = Stamp(dice.randint(1, 3), dice.randint(1, 3))
    if held is not None and dice.random() < 0.7:
        stamp = held
    tag = Tag(1, dice.randint(1, 2), dice.randint(9, 11), dice.randint(1, 12))
    names = dice.sample(NAMES, dice.randint(0, 4))
    parts = [(name, dice.randint(0, 60), dice.randint(1, 60)) for name in names]
    commands: list[tuple[str, tuple[Any, ...]]] = [
        ("stamp", (stamp, "a" if tag.seq < 10 else "b")),
        ("write_record", (stamp, tag, dice.randbytes(dice.randint(0, 30)))),
        ("put", (stamp, [(name, dice.randbytes(dice.randint(0, 50))) for name in names])),
        ("get", (None if dice.random() < 0.3 else stamp, names)),
        ("get_parts", (None if dice.random() < 0.3 else stamp, parts)),
        ("list_objects", (stamp,)),
        ("delete", (stamp, names)),
        ("peek", ()),
    ]
    return dice.choices(commands, (1, 2, 2, 1, 1, 1, 1, 1))[0]


@pytest.mark.parametrize("seed", range(6))
def test_model_and_real_server_give_the_same_answers(seed: int, real: Real) -> None:
    dice = random.Random(seed)
    model = ServerModel("state-0", real.run_id)
    lives = ["f" * 40, real.run_id]
    seen = set()
    for number in range(160):
        if dice.random() < 0.03:
            real.kill_and_start()
            model.restart(real.run_id)
            lives.append(real.run_id)
        run_id = real.run_id if dice.random() < 0.9 else dice.choice(lives)
        operation, arguments = _command(dice, model.stamp_in_effect)
        expected = getattr(model, operation)(run_id, *arguments)
        answer = getattr(real.client(run_id), operation)(*arguments)
        assert answer == expected, f"{number}: {operation} {run_id} {arguments}"
        seen.add(expected.reason if isinstance(expected, NotOwner) else type(expected))
    assert {Reason.FENCED, Reason.STALE_EPOCH, Reason.BEHIND, Reason.RUN_ID} <= seen
    assert {type(OK), Stamped, TagTooLow, Listed, tuple} <= seen


REFUSALS = [
    (Stamp(1, 3), Stamp(1, 2), Reason.FENCED, "execution 3 of the topology has taken over"),
    (Stamp(4, 3), Stamp(1, 2), Reason.FENCED, "execution 3 of the topology has taken over"),
    (Stamp(4, 2), Stamp(1, 2), Reason.STALE_EPOCH, "the view has changed, to epoch 4"),
    (Stamp(1, 2), Stamp(4, 2), Reason.BEHIND, "it still is under epoch 1, execution 2"),
    (Stamp(1, 1), Stamp(1, 2), Reason.BEHIND, "it still is under epoch 1, execution 1"),
]


@pytest.mark.parametrize(("current", "sent", "reason", "why"), REFUSALS)
def test_a_refusal_says_whether_an_execution_or_a_view_is_over(
    real: Real, current: Stamp, sent: Stamp, reason: Reason, why: str
) -> None:
    model = ServerModel("state-0", real.run_id)
    model.stamp(real.run_id, current)
    client = real.client(real.run_id)
    client.stamp(current)
    refusal = NotOwner(reason, current)
    assert (client.put(sent, []), model.put(real.run_id, sent, [])) == (refusal, refusal)
    assert refusal.why == why
    if reason is not Reason.BEHIND:
        assert (client.stamp(sent), model.stamp(real.run_id, sent)) == (refusal, refusal)
    assert NotOwner(Reason.UNSTAMPED).why == NotOwner(Reason.RUN_ID).why == "it was started anew"


def test_the_equal_stamp_of_another_driver_is_refused(real: Real) -> None:
    """A view that was put back has given its execution out again."""
    model, client = ServerModel("state-0", real.run_id), real.client(real.run_id)
    current, nothing = Stamp(1, 11), Stamped(None, None)
    assert client.stamp(current, "a") == model.stamp(real.run_id, current, "a") == nothing
    refusal = NotOwner(Reason.FENCED, current)
    assert client.stamp(current, "b") == model.stamp(real.run_id, current, "b") == refusal
    assert client.stamp(current, "a") == model.stamp(real.run_id, current, "a") == nothing
    later = Stamp(1, 12)
    assert client.stamp(later, "b") == model.stamp(real.run_id, later, "b") == nothing


@pytest.mark.parametrize(("current", "sent", "reason", "why"), REFUSALS)
def test_a_server_refuses_what_is_not_under_its_stamp_and_says_whose_it_is(
    current: Stamp, sent: Stamp, reason: Reason, why: str
) -> None:
    model = ServerModel("state-0", "r1")
    model.stamp("r1", current)
    refusal = model.put("r1", sent, [])
    assert refusal == NotOwner(reason, current)
    assert refusal.why == why
    assert not refusal.reason.anew


def test_a_server_of_another_life_says_nothing_of_executions_and_views() -> None:
    model = ServerModel("state-0", "r1")
    for run_id, reason in (("r0", Reason.RUN_ID), ("r1", Reason.UNSTAMPED)):
        refusal = model.put(run_id, Stamp(1, 1), [])
        assert refusal == NotOwner(reason)
        assert refusal.reason.anew
        assert refusal.why == "it was started anew"
    # The stamp of the life before is none of this one, should one be named.
    assert NotOwner(Reason.UNSTAMPED, Stamp(1, 2)).why == "it was started anew"
    assert NotOwner(Reason.FENCED).why == "it was started anew"


def test_topologies_on_one_server_do_not_meet(real: Real) -> None:
    mine, other = real.client(real.run_id), StateClient(real.server.address, "another")
    mine.stamp(Stamp(1, 1))
    mine.put(Stamp(1, 1), [("a", b"1")])
    assert other.get(Stamp(1, 1), ["a"]) == NotOwner(Reason.UNSTAMPED)
    other.stamp(Stamp(1, 9))
    assert other.get(Stamp(1, 9), ["a"]) == (MISSING,)
    assert mine.get(Stamp(1, 1), ["a"]) == (Found(b"1"),)
    assert other.wipe() == 1
    assert mine.list_objects(Stamp(1, 1)) == Listed(("a",))
    other.close()


# --- what only the model can show


def _stamped(*, fsync_always: bool) -> ServerModel:
    model = ServerModel("s", "r1", fsync_always=fsync_always)
    assert model.stamp("r1", Stamp(1, 1)) == Stamped(None, None)
    return model


def test_a_restarted_server_is_unstamped_and_another_incarnation() -> None:
    model = _stamped(fsync_always=True)
    model.write_record("r1", Stamp(1, 1), Tag(1, 1, 1, 1), b"one")
    model.restart("r2")
    assert model.put("r1", Stamp(1, 1), []) == NotOwner(Reason.RUN_ID)
    assert model.put("r2", Stamp(1, 1), []) == NotOwner(Reason.UNSTAMPED)
    assert model.stamp("r2", Stamp(1, 1)) == Stamped(b"one", Tag(1, 1, 1, 1))


@pytest.mark.parametrize("kept", [0, 1, 2, 3, None])
def test_a_crash_keeps_a_prefix_of_what_was_not_fsynced(kept: int | None) -> None:
    model, stamp = _stamped(fsync_always=False), Stamp(1, 1)
    model.put("r1", stamp, [("a", b"1"), ("b", b"2")])
    model.fsync()
    model.delete("r1", stamp, ["a"])
    model.put("r1", stamp, [("c", b"3")])
    model.write_record("r1", stamp, Tag(1, 1, 1, 1), b"one")
    assert model.unsynced == 3
    model.restart("r2", kept)
    names = [{"a", "b"}, {"b"}, {"b", "c"}, {"b", "c"}][3 if kept is None else kept]
    record = model.stamp("r2", Stamp(1, 2))
    assert model.list_objects("r2", Stamp(1, 2)) == Listed(tuple(sorted(names)))
    assert record == (
        Stamped(b"one", Tag(1, 1, 1, 1)) if kept in (3, None) else Stamped(None, None)
    )
    model.restart("r3", 0)
    assert model.get("r3", None, ["b"]) == (Found(b"2"),)


def test_an_empty_start_has_nothing() -> None:
    model = _stamped(fsync_always=True)
    model.put("r1", Stamp(1, 1), [("a", b"1")])
    model.restart_empty("r2")
    assert model.get("r2", None, ["a"]) == (MISSING,)
    assert model.peek("r2") == Stamped(None, None)


def test_an_older_file_that_is_put_back_is_all_there_is() -> None:
    model, stamp = _stamped(fsync_always=True), Stamp(1, 1)
    model.put("r1", stamp, [("b", b"2"), ("a", b"1")])
    model.write_record("r1", stamp, Tag(1, 1, 1, 1), b"one")
    file = model.file()
    model.put("r1", stamp, [("c", b"3")])
    model.write_record("r1", stamp, Tag(1, 1, 1, 2), b"two")
    model.restart_on("r2", file)
    assert model.put("r2", stamp, []) == NotOwner(Reason.UNSTAMPED)
    assert model.stamp("r2", stamp) == Stamped(b"one", Tag(1, 1, 1, 1))
    assert model.list_objects("r2", stamp) == Listed(("a", "b"))
    model.restart("r3")
    assert model.peek("r3") == Stamped(b"one", Tag(1, 1, 1, 1))


def test_who_only_looks_names_the_incarnation_too() -> None:
    model = _stamped(fsync_always=True)
    assert model.peek("r0") == NotOwner(Reason.RUN_ID)
    assert model.get("r0", None, ["a"]) == NotOwner(Reason.RUN_ID)
    assert model.list_objects("r0", Stamp(1, 1)) == NotOwner(Reason.RUN_ID)
    assert model.list_objects("r1", Stamp(1, 2)) == NotOwner(Reason.BEHIND, Stamp(1, 1))


def test_the_same_tag_again_says_that_it_is_there() -> None:
    model, tag = _stamped(fsync_always=True), Tag(1, 1, 1, 1)
    assert model.write_record("r1", Stamp(1, 1), tag, b"one") == OK
    assert model.write_record("r1", Stamp(1, 1), tag, b"two") == TagTooLow(tag)
    assert model.peek("r1") == Stamped(b"one", tag)


@pytest.mark.parametrize("end", ["restart", "restart_empty", "restart_on"])
def test_what_a_crash_has_lost_stays_lost(end: str) -> None:
    """Writes that were not fsynced before one crash do not come back with the next fsync."""
    model = _stamped(fsync_always=False)
    file = model.file()
    model.put("r1", Stamp(1, 1), [("a", b"1")])
    if end == "restart":
        model.restart("r2", 0)
    elif end == "restart_empty":
        model.restart_empty("r2")
    else:
        model.restart_on("r2", file)
    assert model.unsynced == 0
    model.fsync()
    model.restart("r3")
    assert model.get("r3", None, ["a"]) == (MISSING,)
