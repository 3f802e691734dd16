"""Hostile documents and overrides are a clear problem, soon and in little memory.

Time is CPU time of a process of its own, and its limits lie well above what is promised (one
second, 200 MB), so that a busy machine changes nothing.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_documents import BODY, DOCUMENTS

from millrace.errors import ExitCode
from millrace.topology.load import parse
from millrace.topology.problems import InvalidTopologyError

FUZZ = Path(__file__).with_name("hostile_documents.py")
CPU_S = 6
PEAK_MB = 200


def limited() -> None:
    """In the child: it dies rather than take the machine with it."""
    resource.setrlimit(resource.RLIMIT_CPU, (10 * CPU_S, 10 * CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))


MEASURED = """
import runpy, sys
told = sys.argv.pop(1)
try:
    runpy.run_module("millrace.cli.app", run_name="__main__", alter_sys=True)
finally:
    with open("/proc/self/status") as status, open(told, "w") as file:
        file.write(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""


def validated(file: Path, *options: str) -> tuple[int, str, float, float]:
    """Exit code, errors, CPU seconds and peak memory in MB of ``millrace validate``.

    The process tells its own peak: what the kernel tells its parent begins with the parent's.
    """
    errors, peak = file.with_suffix(".errors"), file.with_suffix(".peak")
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                MEASURED,
                str(peak),
                "validate",
                "--no-code",
                str(file),
                *options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            preexec_fn=limited,
            env={**os.environ, "NO_COLOR": "1"},
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return (
        process.returncode,
        errors.read_text(errors="surrogateescape"),
        used.ru_utime + used.ru_stime,
        int(peak.read_text()) / 1024 if peak.exists() else float("inf"),
    )


def check(code: int, errors: str, cpu_s: float, peak_mb: float) -> None:
    assert code == ExitCode.INVALID_TOPOLOGY, errors[-500:]
    lines = errors.splitlines()
    assert 1 <= len(lines) <= 100
    assert all(line.startswith("error: ") and "; " in line and len(line) < 3000 for line in lines)
    assert "Traceback" not in errors
    assert errors.isprintable() or all(c == "\n" or c.isprintable() for c in errors)
    assert cpu_s < CPU_S
    assert peak_mb < PEAK_MB


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_hostile_document_is_a_problem_soon(name, tmp_path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(DOCUMENTS[name])
    check(*validated(file))


@pytest.mark.parametrize(
    "override",
    [
        "spec" + "[a]" * 3000 + "=1",
        "spec.sources[" + "9" * 5000 + "].name=x",
        "spec.code.path=" + "[" * 3000,
        "spec.code={path: &a [x, x, x, x, x, x, x, x, x], image: "
         "[" + ", ".join(["*a"] * 9000) + "]}",
        "spec.keyGroups=" + "1:" * 20_000 + "1",
        "spec.code.path=\"a\\0b\"",
        "spec.code.path=\udcff\x1b[2J",
    ],
    ids=["brackets", "index", "depth", "aliases", "base 60", "nul", "no text"],
)  # fmt: skip
def test_a_hostile_override_is_a_problem_soon(override, tmp_path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(BODY)
    check(*validated(file, "--set", override))


def test_a_device_without_end_is_not_read_to_its_end(tmp_path) -> None:
    file = tmp_path / "topology.yaml"
    file.symlink_to("/dev/zero")
    code, errors, cpu_s, peak_mb = validated(file)
    assert code == ExitCode.INVALID_TOPOLOGY
    assert "more than 1,048,576 characters" in errors
    assert (cpu_s < CPU_S, peak_mb < PEAK_MB) == (True, True)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_made_up_documents_are_read_or_refused(seed) -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZ), str(seed), "250"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["mostS"] < CPU_S
    assert found["peakMb"] < PEAK_MB
    assert found["refused"] > 100
    assert found["unexplained"] == 0


SINK = BODY.replace("{path: t}", "{path: 'SOURCE'}").replace("{path: o}", "{path: SINK}")


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ("in", "in"),
        ("in", "./x/../in"),
        ("in", "link"),
        ("link", "in"),
        ("in/*.jsonl", "in"),
        ("in/*", "link"),
        ("i?/part-*", "in"),
        ("**/*", "in/deep/out"),
        ("in/**", "link/deeper"),
        ("far/*/*.jsonl", "elsewhere"),
    ],
)
def test_a_sink_in_what_a_source_reads_is_refused(source, sink, tmp_path) -> None:
    for name in ("in", "elsewhere", "far"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "far" / "near").symlink_to("../elsewhere")
    with pytest.raises(InvalidTopologyError, match="is a folder that source 'a' reads"):
        parse(SINK.replace("SOURCE", source).replace("SINK", sink), folder=tmp_path)


@pytest.mark.parametrize(
    ("source", "sink"),
    [("in", "out"), ("in/*.csv", "in"), ("in/*", "in/deep"), ("in", "in/deep"), ("in/a.txt", "in")],
)
def test_a_sink_beside_what_a_source_reads_is_none_of_its_input(source, sink, tmp_path) -> None:
    (tmp_path / "in").mkdir()
    parse(SINK.replace("SOURCE", source).replace("SINK", sink), folder=tmp_path)


def test_two_sinks_in_one_folder_are_seen_through_a_link(tmp_path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "also").symlink_to("o")
    other = "{name: p, inputs: [{from: a}], files: {path: also}}"
    text = BODY.replace("{path: o}}]", f"{{path: o}}}}, {other}]")
    with pytest.raises(InvalidTopologyError, match="is the folder of sink 'o' too"):
        parse(text, folder=tmp_path)
