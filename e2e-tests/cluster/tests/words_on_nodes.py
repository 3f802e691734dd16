"""The word count of the examples on two nodes, and what its campaigns are made of: a cluster with
the operator by the commands of docs/install.md, texts that come, kills by ``millrace chaos``.

What the sink holds is judged by a count of the texts that shares nothing with the product.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_command import ROOT, SYSTEM, Shell, block
from cluster_command import FAILED, Tool
from gathering import gather
from kubernetes.client.exceptions import ApiException

from millrace.chaos.plan import kinds_in, plan
from millrace.guard import die_with
from millrace.homes import pods
from millrace.homes.pods import Role
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import by_kubeconfig
from millrace_e2e.cluster import project
from millrace_e2e.cluster.layout import Layout
from millrace_e2e.waiting import until

Manifest = dict[str, Any]

EXAMPLE = ROOT / "examples" / "wordcount"
NAME = "wordcount"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}

WAIT_S = 300.0
SEED = 7
TARRYING, TARRIES_S = "tarry", 0.001
"""A line with this word at its beginning takes so long, where the code is ``special``."""
WORDS = [f"w{number}" for number in range(97)] + ["mill", "race", TARRYING]
LINES, PAUSE_S = 3_000, 1.0
DEADLY = "deadly"
"""A line of this word alone ends the worker that splits it, where the code is ``special``."""

JUDGED = """
from collections import Counter
from pathlib import Path


def expected(folder):
    words = Counter()
    for path in Path({texts!r}).iterdir():
        words.update(word for word in path.read_text().split() if word != {deadly!r})
    return {{"totals": [{{"word": word, "n": n}} for word, n in words.items()]}}
"""

TWICE = {
    "ackers": {"replicas": 3},
    "stateServers": {"replicas": 4, "copies": 2, "memory": "256m"},
    # Room for another driver, and on one node for all that both had.
    "pods": {
        "driver": {"resources": {"requests": {"cpu": "500m"}}},
        "stateServers": {"resources": {"requests": {"cpu": "100m"}}},
    },
}
"""Two acknowledged copies of everything, on two nodes."""

# -- a cluster with the operator


@contextmanager
def installed(tool: Tool, folder: Path) -> Iterator[Shell]:
    """Two nodes with all images and the operator by the document's commands, which remove it in the
    end where the body has passed."""
    shell = with_images(tool, folder)
    try:
        shell.script(block("Installing the operator", "helm -n"))
    except BaseException:
        gather(shell, "installing", (SYSTEM,))
        raise
    yield shell
    remove(shell)


def with_images(tool: Tool, folder: Path) -> Shell:
    """Two nodes with all images, under the names that the documents have."""
    built = project.images(print)
    tool.run("up", "--nodes", "2")
    for archive in built:
        tool.run("load", str(archive))
    return Shell(folder, Layout.standard().kubeconfig)


def remove(shell: Shell) -> None:
    """The operator, by the document's commands."""
    uninstall, definitions = block("Removing", "uninstall").strip().splitlines()
    shell.script(uninstall)
    shell.script(definitions)
    shell.must("kubectl", "delete", "namespace", SYSTEM, "--timeout=180s")


def reachable_folder(folder: Path) -> Path:
    """A folder that the user of pods may write to."""
    folder.mkdir(parents=True)
    os.chown(folder, pods.USER_ID, pods.USER_ID)
    folder.chmod(0o755)
    for above in folder.parents:
        if above.stat().st_mode & 0o001 == 0:
            above.chmod(0o711)
    return folder


def volume(name: str, space: str, claim: str, folder: Path) -> Manifest:
    """A folder of the machine, which both nodes see, for a claim that no class provides for."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
        "storageClassName": "",
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": space, "name": claim},
    }
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}


class Space:
    """A namespace with the word count in it."""

    def __init__(self, shell: Shell, name: str) -> None:
        self.shell, self.name = shell, name

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.shell.must("kubectl", "-n", self.name, *words, stdin=stdin)

    def get(self, *what: str) -> Manifest:
        found: Manifest = json.loads(self.kubectl("get", *what, "-o", "json"))
        return found

    def apply(self, *manifests: Manifest) -> None:
        document = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def topology(self) -> Manifest:
        return self.get("streamtopology", NAME)

    def await_ready(self, timeout_s: float = WAIT_S) -> None:
        condition = "--for=condition=Ready"
        self.kubectl("wait", f"topo/{NAME}", condition, f"--timeout={timeout_s:g}s")

    def patch(self, spec: Manifest) -> None:
        """Edit the topology: a merge patch of its spec."""
        document = json.dumps({"spec": spec})
        self.kubectl("patch", "topo", NAME, "--type=merge", "-p", document)

    def stand_by(self, count: int) -> None:
        """Have so many drivers stand by, with executors of their own."""
        self.patch({"spark": {"driver": {"standby": count, "standbyExecutors": "Ready"}}})

    def told(self, reason: str) -> list[str]:
        """What the events with a reason say; one that came again is there as often."""
        found = self.get("events", "--field-selector", f"reason={reason}")["items"]
        texts = [(str(one.get("message") or one.get("note")), _times(one)) for one in found]
        return [text for text, times in texts for _ in range(times)]

    def condition(self, kind: str, topology: str = NAME) -> tuple[str, str]:
        """Status and reason of a topology's condition of a type; empty where it has none."""
        found = self.get("streamtopology", topology)["status"]["conditions"]
        chosen = [(one["status"], one["reason"]) for one in found if one["type"] == kind]
        return chosen[0] if chosen else ("", "")

    def pods(self, role: Role) -> list[Manifest]:
        """Those that run and are to stay."""
        selector = f"{pods.TOPOLOGY_LABEL}={NAME},{pods.ROLE_LABEL}={role.value}"
        return [
            one
            for one in self.get("pods", "-l", selector)["items"]
            if "deletionTimestamp" not in one["metadata"] and one["status"]["phase"] == "Running"
        ]

    @contextmanager
    def no_more_pods(self) -> Iterator[str]:
        """Meanwhile the API server takes no other pod. Yields the name of the quota."""
        name = "no-more-pods"
        about = {"name": name, "namespace": self.name}
        made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": about}
        self.apply({**made, "spec": {"hard": {"pods": "0"}}})
        counted = partial(self.get, "resourcequota", name)
        until(lambda: counted().get("status", {}).get("used"), "the quota counts", WAIT_S, 0.3)
        yield name
        self.kubectl("delete", "resourcequota", name)

    def finished(self) -> bool:
        return bool(self.topology().get("status", {}).get("phase") == "Finished")

    def began(self, apply: Callable[[], object], wait: Callable[[], object]) -> dict[str, float]:
        """Apply the topology and wait for it to be ready. Seconds since the command began, by this
        process' clock: ``driver_pod_s`` to the word of the API server that the first driver's pod
        is there, ``resource_s`` to that of the topology itself, ``ready_s`` to the end of the
        wait."""
        driver = pods.pod_name(NAME, Role.DRIVER, 1)
        of_pods = f"/api/v1/namespaces/{self.name}/pods"
        of_topologies = f"/apis/millrace.dev/v1alpha1/namespaces/{self.name}/streamtopologies"
        with told_of(of_topologies, NAME) as resource, told_of(of_pods, driver) as pod:
            began_s = time.monotonic()
            apply()
            wait()
            ready_s = time.monotonic()
            told = {"resource_s": resource(), "driver_pod_s": pod(), "ready_s": ready_s}
        return {name: round(at_s - began_s, 2) for name, at_s in told.items()}

    def millrace(self, *words: str) -> str:
        """What a command about this namespace's topologies prints."""
        command = [sys.executable, "-m", "millrace.cli.app", *words, "-n", self.name]
        done = subprocess.run(command, env=reaching(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def await_finished(self) -> None:
        until(self.finished, "all texts are counted", WAIT_S, 0.5)

    def delete(self) -> None:
        """Delete the topology, and see what belonged to it go."""
        self.kubectl("delete", "topo", NAME, f"--timeout={WAIT_S:g}s")
        label = ("-l", f"{pods.TOPOLOGY_LABEL}={NAME}", "-o", "name")
        left = partial(self.kubectl, "get", _CHILDREN, *label)
        until(lambda: left() == "", "nothing is left of it", WAIT_S, 0.5)


def reaching() -> dict[str, str]:
    """The environment of a command that means this cluster."""
    return {**os.environ, "KUBECONFIG": str(Layout.standard().kubeconfig)}


@contextmanager
def told_of(path: str, name: str) -> Iterator[Callable[[], float]]:
    """A watch from now on of a list of the API server. Yields what waits for its first word of an
    object, and says when that came, by the monotonic clock."""
    api = by_kubeconfig(file=str(Layout.standard().kubeconfig))
    since = api.call("GET", path)["metadata"]["resourceVersion"]
    query = {"watch": "1", "resourceVersion": since, "fieldSelector": f"metadata.name={name}"}
    query["timeoutSeconds"] = f"{WAIT_S:g}"
    told_s: list[float] = []

    def look() -> None:
        with suppress(HomeAwayError, ApiException):
            for _ in api.lines(path, query, WAIT_S):
                told_s.append(time.monotonic())
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()

    def first() -> float:
        thread.join(WAIT_S)
        assert told_s, f"nothing is told of {name}"
        return told_s[0]

    yield first


def _times(event: Manifest) -> int:
    return int(event.get("count") or 1)


_CHILDREN = (
    "pods,configmaps,secrets,services,serviceaccounts,roles,rolebindings,"
    "poddisruptionbudgets,networkpolicies"
)


def counted(texts: Path, counts: Path) -> Manifest:
    """What the example's own check says, which imports nothing of the product."""
    command = [sys.executable, str(EXAMPLE / "count_words.py"), str(texts), str(counts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: Manifest = json.loads(done.stdout)
    return found


@contextmanager
def space_of(shell: Shell, name: str, request: pytest.FixtureRequest) -> Iterator[Space]:
    try:
        yield Space(shell, name)
    except BaseException:
        gather(shell, f"{name}-on-nodes", (name, SYSTEM))
        raise
    if request.session.testsfailed or request.node.stash.get(FAILED, False):
        gather(shell, f"{name}-on-nodes", (name, SYSTEM))
    shell.must("kubectl", "delete", "namespace", name, "--ignore-not-found", "--timeout=180s")
    shell.must("kubectl", "delete", "persistentvolume", name, "--ignore-not-found")


# -- a campaign


def larger(documents: Sequence[Manifest], space: str, spec: Manifest) -> Iterator[Manifest]:
    """These of the example's folder, with pods on two nodes, on one claim for all of them."""
    for one in documents:
        metadata = {**one["metadata"], "namespace": space}
        if one["kind"] == "PersistentVolumeClaim":
            yield {**one, "metadata": metadata, "spec": {**one["spec"], **_SHARED}}
        elif one["kind"] == "StreamTopology":
            (source,) = one["spec"]["sources"]
            files = {**source["files"], "watch": True}
            own = {**one["spec"], **LARGER, **spec, "sources": [{**source, "files": files}]}
            yield {**one, "metadata": metadata, "spec": own}
        elif "wordcount.py" in one.get("data", {}):
            code = {"wordcount.py": special(one["data"]["wordcount.py"])}
            yield {**one, "metadata": metadata, "data": code}
        else:
            yield {**one, "metadata": metadata}


def special(code: str) -> str:
    """The example's code, but that some lines end the worker or take long."""
    head, first, rest = code.replace(
        "import pyarrow as", "import os\nimport time\n\nimport pyarrow as", 1
    ).partition("    words = ")
    lines = 'batch.column("value")'
    added = f"""\
    if pc.any(pc.equal({lines}, "{DEADLY}")).as_py():
        os._exit(7)
    tarrying = pc.starts_with({lines}, "{TARRYING} ")
    time.sleep({TARRIES_S} * (pc.sum(tarrying).as_py() or 0))
"""
    return f"{head}{added}{first}{rest}"


_SHARED = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
_DATA = {"name": "data", "mountPath": "/data"}
LARGER: Manifest = {
    "window": {"maxRecords": 1_000, "maxInterval": "100ms"},
    "volumes": [{**_DATA, "persistentVolumeClaim": {"claimName": "wordcount-counts"}}],
    "spark": {
        "driver": {"memory": "768m"},
        "executors": {"instances": 2, "cores": 1, "memory": "768m"},
        "conf": {"spark.kubernetes.executor.request.cores": "100m"},
    },
}


class Words:
    """Writes a text every second until it is told to end; each is there as a whole or not at all.
    The seconds may be longer on a busy machine: a count of what is there judges."""

    def __init__(self, folder: Path) -> None:
        self.texts, self.counts = folder / "texts", folder / "counts"
        self._folder = folder
        self._files = 0
        for path in (self.texts, self.counts):
            reachable_folder(path)

    def write(self, *given: str) -> None:
        """A text, of the given lines where there are some."""
        dice = random.Random(self._files)
        draft = self._folder / "draft"
        lines = given or (" ".join(dice.choices(WORDS, k=6)) for _ in range(LINES))
        draft.write_text("".join(f"{line}\n" for line in lines))
        draft.chmod(0o644)
        draft.rename(self.texts / f"{self._files:06d}.txt")
        self._files += 1

    @contextmanager
    def coming(self) -> Iterator[Callable[[], None]]:
        """Yields what ends it."""
        over = threading.Event()

        def feed() -> None:
            while not over.wait(PAUSE_S):
                self.write()

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield over.set
        finally:
            over.set()
            thread.join()

    def judged(self) -> Manifest:
        """What the example's check says; ``equal`` without a deadly line, which counts nowhere."""
        found = counted(self.texts, self.counts)
        wrong = [one for one in found["differences"] if one != [DEADLY, 1, 0]]
        return {**found, "equal": not wrong}

    def totals(self) -> Counter[str]:
        """How often each word is in the texts."""
        return Counter(word for one in self.texts.iterdir() for word in one.read_text().split())

    def windows(self) -> int:
        """How many are shown, by the names of files: who asks often shall not keep a core busy."""
        names = (path.name for path in self.counts.rglob("*") if path.name[0] not in "._")
        return len({found[0] for found in map(re.compile(r"\d+").search, names) if found})


class Campaign:
    """The word count with ``spec`` over its own, while texts come."""

    def __init__(self, space: Space, folder: Path, spec: Manifest) -> None:
        self.space, self.folder, self._spec = space, folder, spec
        self.data = reachable_folder(folder / "data")
        self.words = Words(self.data)

    def begin(self) -> dict[str, float]:
        """Returns what ``Space.began`` does of the topology alone."""
        self.words.write()
        name = self.space.name
        labels = {"name": name, "labels": RESTRICTED}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": labels}
        beside = self.space.shell.must("kubectl", "kustomize", str(EXAMPLE))
        self.space.apply(space, volume(name, name, "wordcount-counts", self.data))
        self.space.apply(*larger(list(yaml.safe_load_all(beside)), name, self._spec))
        example = yaml.safe_load((EXAMPLE / "topology.yaml").read_text())
        apply = partial(self.space.apply, *larger([example], name, self._spec))
        told = self.space.began(apply, self.space.await_ready)
        judged = JUDGED.format(texts=str(self.words.texts), deadly=DEADLY)
        (self.folder / "judged.py").write_text(judged)
        return told

    def equal(self) -> bool:
        return bool(self.words.judged()["equal"])

    def await_words(self) -> None:
        """All that was written is counted, and was shown once."""
        until(self.equal, "all words", WAIT_S, 1.0)
        assert self.words.judged()["repeated"] == 0

    def await_windows(self) -> None:
        last = self.words.windows()
        until(lambda: self.words.windows() >= last + 2, f"windows behind {last}", WAIT_S, 0.2)

    def kill(self, kinds: str, every_s: int, for_s: int, *more: str, seed: int = SEED) -> Manifest:
        """What ``millrace chaos --json`` reports; texts come until the last kill is recovered
        from."""
        strikes = len(plan(kinds_in(kinds), every_s, for_s, seed))
        command = [
            *(sys.executable, "-m", "millrace.cli.app", "chaos", NAME, "-n", self.space.name),
            *("--kill", kinds, "--every", f"{every_s}s", "--for", f"{for_s}s"),
            *("--seed", str(seed), "--settle", "10m", "--json"),
            *("--expect", "judged:expected", "--sinks-at", str(self.data)),
            *("--operator-namespace", SYSTEM, *more),
        ]
        told: list[str] = []
        done: set[str] = set()
        with self.words.coming() as enough, (self.folder / "report.json").open("w+") as report:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=reaching(),
                stdin=subprocess.DEVNULL,
                stdout=report,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=partial(die_with, os.getpid()),
            )
            assert process.stderr is not None
            for line in process.stderr:
                print(line, end="", flush=True)
                told.append(line)
                done.update(_DONE.findall(line))
                if len(done) == strikes:
                    # Before that there would be no window by which the last one has recovered.
                    enough()
            process.wait()
            report.seek(0)
            text = report.read()
        assert process.returncode == 0, text + "".join(told)
        found: Manifest = json.loads(text)
        return found


_DONE = re.compile(r"^(\d+): (?:a window is sealed|.* had nothing to do|no .* is there)")
"""A note of ``millrace chaos`` by which a strike is over."""


@contextmanager
def campaign_of(
    shell: Shell, name: str, folder: Path, spec: Manifest, request: pytest.FixtureRequest
) -> Iterator[Campaign]:
    """One that has begun, in a namespace of its own."""
    with space_of(shell, name, request) as space:
        made = Campaign(space, folder, spec)
        made.begin()
        yield made


def check(report: Mapping[str, Any]) -> None:
    """Nothing is lost, doubled or wrong; every kill hit work in flight and was recovered from."""
    brief = {key: report[key] for key in _BRIEF}
    print(json.dumps(brief), flush=True)
    assert {key: report[key] for key in ("lost", "duplicated", "wrong")} == _EXACT, report["sinks"]
    assert report["missed"] == []
    assert report["in_flight"] == report["kills"]
    assert None not in [time_s for times in report["recovery_s"].values() for time_s in times]
    assert report["failure"] is None
    assert report["ended"] is None


_EXACT = {"lost": 0, "duplicated": 0, "wrong": 0}
_BRIEF = (*_EXACT, "kills", "in_flight", "missed", "recovery_s", "timeline")
