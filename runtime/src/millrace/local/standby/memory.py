"""Memory of the machine, for a process that is of use only where there is enough of it.

The kernel ends processes where memory runs out, the ones with the highest ``oom_score_adj`` first.
A driver that stands by is begun with a high one (``guard``), so that it goes before the driver that
works, a worker in the user's code, a state server. The driver itself has what the run has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from millrace.guard import descendants

_ROUNDS = 10

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def treat_like_guard(guard: int) -> None:
    """Have the kernel judge all below ``guard`` as it judges that one, which never changed.

    Looks again until nothing is left to do: a process that is forked meanwhile is as its parent
    was. What cannot be changed stays.
    """
    wanted = _adjustment(guard)
    if not guard or wanted is None:
        return
    for _ in range(_ROUNDS):
        others = [pid for pid, _ in descendants(guard) if _adjustment(pid) not in (wanted, None)]
        if not sum(_adjusted(pid, wanted) for pid in others):
            return


def room_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Memory that may still be taken here, on the machine and in each control group; None where
    nothing says so. What only keeps files at hand counts as room, since it is given back."""
    rooms = list(_group_rooms(proc, cgroups))
    with suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                rooms.append(int(line.split()[1]) << 10)
    return min(rooms, default=None)


def killed_for_memory(proc: Path = PROC) -> int | None:
    """How many processes the kernel has ended for want of memory since the machine began, in any
    control group; None where it does not count them."""
    with suppress(OSError, ValueError, IndexError):
        for line in (proc / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _group_rooms(proc: Path, cgroups: Path) -> Iterator[int]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current", ("inactive_file", "active_file"))
            root = cgroups
        elif "memory" in controllers.split(","):
            kept = ("total_inactive_file", "total_active_file")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", kept)
            root = cgroups / "memory"
        else:
            continue
        # A container sees its own group as the root, whatever the path says.
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                with suppress(OSError, ValueError):  # no limit, or no such group in here
                    yield _group_room(folder, *names)


def _group_room(folder: Path, limit: str, used: str, kept: tuple[str, ...]) -> int:
    limit_bytes = int((folder / limit).read_text())
    used_bytes = int((folder / used).read_text())
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in kept:
            used_bytes -= int(value)
    return max(0, limit_bytes - used_bytes)


def _adjustment(pid: int) -> int | None:
    try:
        return int((PROC / str(pid) / "oom_score_adj").read_text())
    except (OSError, ValueError):
        return None


def _adjusted(pid: int, wanted: int) -> bool:
    try:
        (PROC / str(pid) / "oom_score_adj").write_text(str(wanted))
    except OSError:
        return False
    return True
