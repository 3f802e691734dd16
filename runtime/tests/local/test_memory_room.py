"""How much memory may still be taken, by what the kernel says in each of its ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.local.standby.memory import killed_for_memory, room_bytes

GIB = 1 << 30
MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"


def group(folder: Path, limit: str, used: int, kept: int, names: tuple[str, str, str]) -> None:
    folder.mkdir(parents=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {kept}\n")


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
    return tmp_path / "proc"


def room(proc: Path) -> int | None:
    return room_bytes(proc, proc.parent / "groups")


def test_the_machine_says_how_much_is_available(proc: Path) -> None:
    assert room(proc) == 8 * GIB


def test_where_nothing_is_said_it_is_not_known(tmp_path: Path) -> None:
    assert room_bytes(tmp_path, tmp_path) is None


@pytest.mark.parametrize("line", ["0::/a/b", "0::/"])
def test_a_group_above_may_have_the_limit_or_a_container_sees_it_as_the_root(
    proc: Path, line: str
) -> None:
    (proc / "self" / "cgroup").write_text(f"{line}\n")
    root = proc.parent / "groups"
    group(root, str(4 * GIB), 3 * GIB, GIB, V2)
    group(root / "a" / "b", "max", GIB, 0, V2)
    assert room(proc) == 2 * GIB


def test_groups_of_the_first_version_count_as_well(proc: Path) -> None:
    (proc / "self" / "cgroup").write_text("5:cpu:/a\n4:memory:/a\n0::/\n")
    group(proc.parent / "groups" / "memory" / "a", str(2 * GIB), 2 * GIB, GIB // 2, V1)
    assert room(proc) == GIB // 2


def test_the_machine_counts_where_a_group_allows_more(proc: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/a\n")
    group(proc.parent / "groups" / "a", str(64 * GIB), 0, 0, V2)
    assert room(proc) == 8 * GIB


def test_this_machine_has_some() -> None:
    found = room_bytes()
    assert found is not None
    assert found > 0


def test_what_the_kernel_has_ended_for_want_of_memory_is_counted(proc: Path) -> None:
    assert killed_for_memory(proc) is None
    (proc / "vmstat").write_text("oom_kill_disable 9\nnr_free_pages 5\noom_kill 2\n")
    assert killed_for_memory(proc) == 2
