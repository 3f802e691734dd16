"""Connections of tasks to their driver: who may have one, and what ends it."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from millrace.engine.program import link, signing
from millrace.engine.program.link import Caller, LinkError, Place, Work, answer, call
from millrace.engine.program.signing import UnsignedError

ME = Caller(3, 1)


@pytest.fixture(params=["unix", "127.0.0.1", "::1"])
def place(request, tmp_path, monkeypatch):
    if request.param == "unix":
        monkeypatch.chdir(tmp_path)
        return Place("s")
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        with socket.create_server((request.param, 0), family=family) as free:
            return Place(request.param, free.getsockname()[1])
    except OSError:
        pytest.skip(f"this machine has no {request.param}")


@pytest.fixture
def pair(place):
    """Both ends of a connection, the driver's first."""
    with again(place) as ends:
        yield ends


@contextmanager
def again(place):
    with place.listen() as listener:
        ends = []
        thread = threading.Thread(target=lambda: ends.append(call(place, ME)))
        thread.start()
        driver, caller = answer(listener.accept()[0])
        thread.join()
    assert caller == ME
    with driver, ends[0] as task:
        yield driver, task


def test_messages_arrive_whole_and_in_turn(pair):
    driver, task = pair
    large = os.urandom(3 << 20)
    sent = threading.Thread(target=driver.send, args=("work", Work(large, b"share")))
    sent.start()
    assert task.receive("work") == Work(large, b"share")
    sent.join()
    task.send("made", [b"one", b""])
    assert driver.receive("made") == [b"one", b""]
    driver.send("work", None)
    assert task.receive("work") is None


def test_the_end_of_the_other_is_heard_by_who_reads_and_by_who_writes(pair):
    driver, task = pair
    task.close()
    with pytest.raises(LinkError, match="the other end is gone"):
        driver.receive("made")
    with pytest.raises(LinkError, match="the other end is gone"):
        driver.send("work", bytes(64 << 20))


def test_who_waits_is_woken_by_a_close_from_elsewhere(pair):
    driver, _ = pair
    heard = []

    def wait():
        try:
            driver.receive("made")
        except LinkError as error:
            heard.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    driver.close()
    thread.join(30.0)
    assert len(heard) == 1


def test_what_a_process_forks_does_not_keep_its_connection_open(pair):
    driver, task = pair
    child = os.fork()
    if child == 0:
        try:
            threading.Event().wait(600.0)
        finally:
            os._exit(0)
    try:
        task._connection.close()  # as the kernel does with those of a process that has ended
        with pytest.raises(LinkError):
            driver.receive("made")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_nothing_is_unpickled_that_was_not_signed_for_this(pair):
    driver, task = pair
    trap = pickle.dumps(Trap())
    for data in (trap, bytes(32) + trap, signing.signed("share", Trap())):
        task.write(framed(data))
        with pytest.raises(UnsignedError, match="should be a made"):
            driver.receive("made")


def test_a_message_counts_once_and_on_its_connection(pair, tmp_path):
    driver, task = pair
    sent = []
    write, task.write = task.write, sent.append
    task.send("made", b"one")
    task.send("made", b"two")
    task.write = write
    task.write(sent[0])
    assert driver.receive("made") == b"one"
    task.write(sent[0])
    with pytest.raises(LinkError, match="sent before"):
        driver.receive("made")
    task.write(sent[1])
    assert driver.receive("made") == b"two"
    with again(Place(str(tmp_path / "t"))) as (other, another):
        another.write(sent[0])
        with pytest.raises(LinkError, match="sent before, or on another connection"):
            other.receive("made")


class Trap:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize("kind", ["silent", "slow", "garbage", "long", "gone", "repeats", "ends"])
def test_strangers_are_turned_away(place, monkeypatch, kind):
    monkeypatch.setattr(link, "GREETING_S", 0.2)
    with place.listen() as listener, place.connect() as stranger:
        said = {
            "silent": b"",
            "slow": b"",
            "garbage": struct.pack("!I", 100) + bytes(100),
            "long": struct.pack("!I", 1 << 30),
            "gone": b"",
            "repeats": framed(signing.signed("caller", (b"", 0, (bytes(32), bytes(32), ME)))),
            "ends": struct.pack("!I", 0),
        }[kind]
        stranger.sendall(said)
        if kind == "gone":
            stranger.close()
        if kind == "slow":
            threading.Thread(target=trickle, args=(stranger,), daemon=True).start()
        said = {"long": "at most", "repeats": "repeats"}.get(kind)
        with pytest.raises((LinkError, UnsignedError), match=said):
            answer(listener.accept()[0])


def test_the_first_message_is_bounded_for_a_task_too(place, monkeypatch):
    """Whoever has the address of a driver that is gone says nothing that is signed."""
    monkeypatch.setattr(link, "_FIRST_BYTES", 4096)
    with again(place) as (driver, task):
        driver.write(struct.pack("!I", 4097))
        with pytest.raises(LinkError, match="of 4097 bytes, where at most 4096 are expected"):
            task.receive("work")
    with again(place) as (driver, task):
        for size in (1, 10_000):
            driver.send("work", bytes(size))
            assert task.receive("work") == bytes(size)


def trickle(stranger: socket.socket) -> None:
    """Bytes of a greeting, one in less than what either end waits for."""
    with suppress(OSError):
        for byte in struct.pack("!I", 4000) + bytes(4000):
            stranger.sendall(bytes([byte]))
            time.sleep(0.05)


def framed(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def test_a_time_limit_for_all_sockets_of_a_process_is_none_here(place):
    """A connector may have set one."""
    socket.setdefaulttimeout(0.05)
    try:
        with place.listen() as listener:
            assert listener.gettimeout() is None
    finally:
        socket.setdefaulttimeout(None)


def test_a_driver_that_is_not_there_is_an_error(place):
    with pytest.raises(LinkError, match="the driver is not reached"):
        call(place, ME)
