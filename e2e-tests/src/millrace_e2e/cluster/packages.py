"""Programs of the distribution that a cluster of our own takes; what is missing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from millrace_e2e.cluster.errors import ClusterError

_PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "openssl": "openssl",
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
}
"""Program → the Debian package that has it."""


def missing(path: str | None = None) -> list[str]:
    """Debian packages whose programs are not on ``path`` (``PATH`` and what root has beside it)."""
    where = path if path is not None else f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    lacking = (name for name in _PACKAGES if shutil.which(name, path=where) is None)
    return sorted({_PACKAGES[program] for program in lacking})


def install(say: Callable[[str], None]) -> None:
    """Install what is missing, as root. Raises ``ClusterError`` where that cannot be done here."""
    wanted = missing()
    if not wanted:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"the cluster needs programs of these packages: {', '.join(wanted)}")
    say(f"installing {', '.join(wanted)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *wanted],
    ):
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
        if done.returncode:
            last = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
            raise ClusterError(f"{' '.join(command[:2])} failed:\n{last}")
