"""A topology whose pods are processes of this machine, on a real API server without nodes.

Whoever uses it is the operator: it writes what docs/pods.md says, and proposes whom it sees. Spark
runs its tasks in the driver's pod. Each pod asks the API server by a token of its service account,
and may do there what the account's role says.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from millrace import checked
from millrace.homes import codec, pods
from millrace.homes.documents import Proposal
from millrace.homes.pods import Role
from millrace.homes.settings import RestoreSettings, in_pods
from millrace.kube.configmaps import ConfigMap, by_kubeconfig
from millrace.kube.inboxmap import InboxMap
from millrace.kube.journalmap import JournalMap
from millrace.kube.viewmap import ViewMap
from millrace.protocol.types import Member
from millrace.topology.model import StreamTopology
from millrace_e2e.kubeapi import ApiServer
from millrace_e2e.podmanifests import Manifest, Pods
from millrace_e2e.podprocess import TOPOLOGY, UID, Pod, mounted, secret_of
from millrace_e2e.topologies import word_count
from millrace_e2e.valkey import free_port

EXAMPLE = Path(__file__).parents[3] / "examples" / "wordcount"
CORE = "/api/v1/namespaces/default"
PODS = f"{CORE}/pods"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
PLACES = {
    "ServiceAccount": f"{CORE}/serviceaccounts",
    "Role": f"{RBAC}/roles",
    "RoleBinding": f"{RBAC}/rolebindings",
}

Access = Callable[[StreamTopology], list[Manifest]]
"""Accounts, roles and bindings of a topology's pods in the namespace ``default``."""
TOKEN_S = 7_200
CONTAINER = {"name": "driver", "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
WORDS = ["mill", "race", "wheel", "water", "grain", "stone", "flour", "sack"]


def _members(servers: Sequence[Pod]) -> tuple[Member, ...]:
    seen = [server.incarnation() for server in servers]
    return tuple(Member(one["name"], one["runId"], one["url"]) for one in seen)


class World:
    """One topology of one life ``uid``, its objects and its pods. ``access`` says what they may do,
    ``data`` is what they have at the folder of the topology's files."""

    def __init__(
        self,
        folder: Path,
        server: ApiServer,
        access: Access,
        uid: str = UID,
        data: Path | None = None,
    ) -> None:
        self.folder = folder
        self.uid = uid
        self.data = data or folder / "data"
        # Names of sockets are short.
        self.scratch = Path(tempfile.mkdtemp(prefix="mr-"))
        (self.data / "texts").mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        self.secret = secret_of(uid)
        self.kubeconfig = str(server.kubeconfig)
        self.accounts: dict[str, Manifest] = {}
        """The service accounts, by name."""
        self.rules: dict[str, list[Manifest]] = {}
        """What they may do."""
        self._server, self._access = server, access
        self._api = api = by_kubeconfig(file=self.kubeconfig)
        view, inbox, journal = (
            ConfigMap(api, "default", name(TOPOLOGY))
            for name in (pods.view_map, pods.inbox_map, pods.journal_map)
        )
        for one in (view, inbox, journal):
            assert one.create({})
        self.view, self.inbox, self.journal = ViewMap(view), InboxMap(inbox), JournalMap(journal)
        self.pods: list[Pod] = []
        self.ports: dict[str, int] = {}

    def feed(self, lines: int, name: str) -> None:
        dice = random.Random(name)
        text = "".join(f"{' '.join(dice.choices(WORDS, k=6))}\n" for _ in range(lines))
        (self.data / "texts" / name).write_text(text)

    def config(
        self,
        more: Mapping[str, object] = MappingProxyType({}),
        restore: RestoreSettings | None = None,
        counts: str = "counts",
        **spec: object,
    ) -> Path:
        folder = self.folder / "config"
        folder.mkdir(exist_ok=True)
        document = {
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": "StreamTopology",
            "metadata": {"name": TOPOLOGY},
            "spec": {
                "window": {"maxRecords": 500},
                "code": {"path": str(EXAMPLE)},
                "stateServers": {"replicas": 2, "copies": 2},
                **more,
                **word_count(spec),
            },
        }
        document["spec"]["sinks"][0]["files"]["path"] = counts  # type: ignore[index]
        self._admit(StreamTopology.model_validate(document))
        (folder / pods.TOPOLOGY_KEY).write_text(json.dumps(checked.with_checksum(document)))
        told = replace(
            in_pods(TOPOLOGY, "default", self.uid),
            workdir=str(self.folder / "work"),
            topology=str(folder / pods.TOPOLOGY_KEY),
            folder=str(self.data),
            restore=restore,
        )
        (folder / pods.DRIVER_KEY).write_text(json.dumps(codec.encode(told)))
        return folder

    def _admit(self, topology: StreamTopology) -> None:
        """Let its pods do what they may, and no more than that."""
        for one in self._access(topology):
            kind, name = one["kind"], one["metadata"]["name"]
            how = {"kind": "application/apply-patch+yaml", "query": {"fieldManager": "test"}}
            made = self._api.call("PATCH", f"{PLACES[kind]}/{name}", one, **how)  # type: ignore[arg-type]
            if kind == "ServiceAccount":
                self.accounts[name] = made
            elif kind == "Role":
                self.rules[name] = made["rules"]

    def _kubeconfig_of(self, role: Role) -> Path:
        """That of a pod's service account, as the token that a kubelet mounts."""
        name = f"{TOPOLOGY}-{role.value}"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_S},
        }
        made = self._api.call("POST", f"{PLACES['ServiceAccount']}/{name}/token", asked)
        return self._server.kubeconfig_with(made["status"]["token"], self.folder / f"{name}.kube")

    def driver_object(self, number: int) -> None:
        """The pod of a driver as others see it, which runs."""
        owner = {"apiVersion": "millrace.dev/v1alpha1", "kind": "StreamTopology", "name": TOPOLOGY}
        pod = Pods(TOPOLOGY, "default", self.uid, "data").driver(number)
        pod["metadata"]["ownerReferences"] = [{**owner, "uid": self.uid}]
        self._api.call("POST", PODS, pod)
        self.driver_is(number, "Running")

    def driver_is(self, number: int, phase: str, **state: object) -> None:
        """A kubelet's word on it, and on its container's ``state``."""
        name = pods.pod_name(TOPOLOGY, Role.DRIVER, number)
        status: dict[str, object] = {"phase": phase}
        if state:
            status["containerStatuses"] = [{**CONTAINER, "state": state}]
        merge = "application/merge-patch+json"
        self._api.call("PATCH", f"{PODS}/{name}/status", {"status": status}, kind=merge)

    def state_server(self, number: int) -> Pod:
        name = pods.pod_name(TOPOLOGY, Role.STATE_SERVER, number)
        port = self.ports.setdefault(name, free_port())
        return self._start(Role.STATE_SERVER, name, "--work", self.folder / name, "--port", port)

    def acker(self, number: int, *more: object, **variables: str) -> Pod:
        name = pods.pod_name(TOPOLOGY, Role.ACKER, number)
        return self._start(Role.ACKER, name, *more, **variables)

    def driver(self, number: int, *more: object, **variables: str) -> Pod:
        name = pods.pod_name(TOPOLOGY, Role.DRIVER, number)
        config = self.folder / "config"
        return self._start(Role.DRIVER, name, "--config", config, *more, **variables)

    def _start(self, role: Role, name: str, *arguments: object, **variables: str) -> Pod:
        scratch = self.scratch / name
        scratch.mkdir(exist_ok=True)
        given = [*arguments, "--secret", self.mounted(role, name)]
        if role is not Role.STATE_SERVER:
            given += ["--scratch", scratch]
            variables = {"KUBECONFIG": str(self._kubeconfig_of(role)), **variables}
        variables = {pods.UID: self.uid, **variables}
        made = Pod(self.folder, role, name, *given, **variables)
        self.pods.append(made)
        return made

    def mounted(self, role: Role, name: str) -> Path:
        """The folder with what a pod mounts of the topology's Secret."""
        return mounted(self.folder / f"secret-{name}", self.secret, role, name)

    def propose(self, servers: list[Pod], ackers: list[Pod], leaving: Sequence[Pod] = ()) -> None:
        """As the operator does: whoever is ready, and whose pods are being deleted."""
        for acker in ackers:
            acker.until(pods.READY_PATH)
        proposal = Proposal(_members(servers), tuple(acker.name for acker in ackers))
        self.inbox.propose(replace(proposal, leaving=_members(leaving) or None))

    def sealed(self) -> int:
        return self.journal.status().sealed or 0

    def judge(self, counts: str = "counts") -> dict[str, object]:
        """What the example's own check says, which knows nothing of Millrace."""
        command = [sys.executable, str(EXAMPLE / "count_words.py")]
        folders = [str(self.data / "texts"), str(self.data / counts)]
        done = subprocess.run([*command, *folders], capture_output=True, text=True, check=False)
        found: dict[str, object] = json.loads(done.stdout)
        return found

    def close(self) -> None:
        """Nothing of it is left but its folder."""
        for pod in self.pods:
            pod.kill()
        shutil.rmtree(self.scratch, ignore_errors=True)
        for name_of in (pods.view_map, pods.inbox_map, pods.journal_map):
            self._api.call("DELETE", f"{CORE}/configmaps/{name_of(TOPOLOGY)}")
        for name in self.accounts:
            for place in PLACES.values():
                self._api.call("DELETE", f"{place}/{name}")
        for pod in self._api.call("GET", PODS)["items"]:
            self._api.call("DELETE", f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
