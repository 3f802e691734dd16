"""``python -m millrace_e2e.cluster up|down|...``: what ``make cluster-up`` and its like call."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from millrace_e2e.cluster import binaries, images, project
from millrace_e2e.cluster.choice import Choice, Cluster, find
from millrace_e2e.cluster.errors import ClusterError


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(prog="millrace_e2e.cluster", description=__doc__)
    words.add_argument("--cluster", choices=[one.value for one in Choice], default="auto")
    verbs = words.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="bring the cluster up; what runs already is left alone")
    up.add_argument("--nodes", type=int, default=2, metavar="N")
    verbs.add_parser("down", help="take the cluster down; nothing of it is left")
    verbs.add_parser("status", help="nodes, and whether they are ready")
    load = verbs.add_parser("load", help="give every node the images of a docker archive")
    load.add_argument("archive", type=Path)
    kill = verbs.add_parser("kill-node", help="cut the power of a node")
    kill.add_argument("name")
    start = verbs.add_parser("start-node", help="start a killed node again")
    start.add_argument("name")
    build = verbs.add_parser("build", help="build programs into the cache, and start nothing")
    build.add_argument("sets", nargs="*", choices=[[], *binaries.SETS], metavar="SET")
    verbs.add_parser("prepare", help="have packages, programs and the project's own images")
    image = verbs.add_parser("base-image", help="make an image of Debian; prints its archive")
    image.add_argument("tag")
    image.add_argument("packages", nargs="*", default=list(images.BASE_PACKAGES))
    return words


def main(arguments: list[str] | None = None) -> int:
    """0 when it is done, 1 with one line that says why not."""
    options = parser().parse_args(arguments)
    try:
        if options.verb == "build":
            chosen = [binaries.SETS[name] for name in options.sets] or binaries.BUILDS
            for name, path in sorted(binaries.programs(_say, chosen).items()):
                print(f"{name}\t{path}")
        elif options.verb == "prepare":
            print("\n".join(str(path) for path in project.prepare(_say)))
        elif options.verb == "base-image":
            print(images.base(options.tag, options.packages, _say))
        else:
            _act(find(Choice(options.cluster), _say), options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _act(cluster: Cluster, options: argparse.Namespace) -> None:
    match options.verb:
        case "up":
            cluster.up(options.nodes)
            print(f"export KUBECONFIG={cluster.kubeconfig}")
        case "down":
            cluster.down()
        case "load":
            cluster.load(options.archive.absolute())
        case "kill-node":
            cluster.kill_node(options.name)
        case "start-node":
            cluster.start_node(options.name)
        case "status":
            for name, ready in cluster.nodes().items():
                print(f"{name}\t{'ready' if ready else 'not ready'}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
