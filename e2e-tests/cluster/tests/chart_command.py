"""Helm and kubectl as a person uses them, also by the commands of docs/install.md as they stand."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millrace_e2e.cluster.binaries import BUILDS, CHART_TOOLS, programs
from millrace_e2e.cluster.project import PREFIX, TAG

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "millrace"
SYSTEM = "millrace-system"
DOCUMENTS = ROOT / "docs"
IMAGES = {
    "image.repository": f"{PREFIX}operator",
    "topologyPods.runtimeImage.repository": f"{PREFIX}runtime",
    "topologyPods.stateServerImage.repository": f"{PREFIX}state-server",
}
"""Values that have no default."""

NAMED = ("--set", ",".join(f"{name}={value}" for name, value in IMAGES.items()))


def block(heading: str, word: str, document: str = "install.md") -> str:
    """The commands below a heading of the document that have a word in them."""
    text = re.split(r"^#+ ", (DOCUMENTS / document).read_text(), flags=re.MULTILINE)
    (part,) = [one for one in text if one.startswith(f"{heading}\n")]
    (found,) = [one for one in re.findall(r"^```sh\n(.*?)^```", part, re.M | re.S) if word in one]
    return found


def commands(script: str) -> list[str]:
    """Those of a block one by one, each on a line."""
    return [line for line in script.replace("\\\n", " ").splitlines() if line.strip()]


@dataclass(frozen=True)
class Shell:
    """Programs, a kubeconfig, and folders of Helm's own."""

    folder: Path
    kubeconfig: Path
    programs: Mapping[str, Path] = field(
        default_factory=lambda: programs(print, (*BUILDS, *CHART_TOOLS))
    )

    def run(self, *command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        own = {name: str(self.folder / name.lower()) for name in _FOLDERS}
        path = [str(file.parent) for file in self.programs.values()]
        return subprocess.run(
            command,
            input=stdin,
            env={
                **os.environ,
                **own,
                "KUBECONFIG": str(self.kubeconfig),
                "PATH": ":".join([*dict.fromkeys(path), os.environ["PATH"]]),
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    def must(self, *command: str, stdin: str | None = None) -> str:
        done = self.run(*command, stdin=stdin)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def script(self, commands: str) -> str:
        """Commands of a document, which call the tag of the images ``$tag``."""
        return self.must("bash", "-euc", f"tag={TAG}\n{commands}")


_FOLDERS = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
