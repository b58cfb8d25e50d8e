"""``python -m tests.kube.bed``: check this machine, build the programs, run things in a cluster."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import suppress

from tests.kube.bed import binaries, parallel, private, redis, schedulers
from tests.kube.bed.bed import Bed
from tests.kube.bed.nodes import DEFAULT_NODES
from tests.kube.bed.process import BedError


def main(argv: list[str]) -> int:
    """Exit code of the command, or 1 with one line on what is missing."""
    cut = argv.index("--") if "--" in argv else len(argv)
    options, command = _parser().parse_args(argv[:cut]), argv[cut + 1 :]
    try:
        if options.mode == "check":
            binaries.check()
            return 0
        if options.mode == "build":
            binaries.build()
            schedulers.build()
            with suppress(BedError):  # who needs it asks again, and is told
                redis.fetch()
            return 0
        if options.mode == "test":
            binaries.require(*binaries.PROGRAMS)
            return parallel.run_modules(
                options.paths, command, jobs=options.jobs, tries=options.tries
            )
        if not command:
            raise BedError(f"{options.mode} needs a command after --")
        if options.mode == "first":
            return private.first_process(command)
        if options.mode == "inside":
            return _with_cluster(options, command)
        binaries.require(*(["etcd", "controlplane", "kuberay"] if options.mode == "run" else []))
        if options.mode == "run":
            inside = ["inside", *argv[1:cut], "--", *command]
            command = [sys.executable, "-m", "tests.kube.bed", *inside]
        return private.enter(command)
    except BedError as error:
        print(error, file=sys.stderr)
        return 1


def _with_cluster(options: argparse.Namespace, command: list[str]) -> int:
    with Bed(options.nodes, kueue=options.kueue, keep=options.keep) as bed:
        print(f"cluster is up; logs in {bed.directory}", file=sys.stderr, flush=True)
        env = {**os.environ, "KUBECONFIG": str(bed.kubeconfig), "BED_DIRECTORY": str(bed.directory)}
        return subprocess.run(command, env=env, check=False).returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kube.bed", description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True, metavar="check|build|test|run|enter")
    modes.add_parser("build", help="build the programs of the cluster, with Go")
    modes.add_parser("check", help="say what this machine lacks for it, if anything")
    for name in ("run", "inside"):
        run = modes.add_parser(name, help="a cluster around: -- COMMAND (KUBECONFIG is set)")
        run.add_argument("--nodes", default=DEFAULT_NODES)
        run.add_argument("--kueue", action="store_true")
        run.add_argument("--keep", action="store_true", help="keep the directory with the logs")
    test = modes.add_parser("test", help="test modules, a cluster each: -- ARGUMENTS of pytest")
    test.add_argument("paths", nargs="+", metavar="PATH")
    test.add_argument("--jobs", type=int, default=1, help="modules at a time")
    test.add_argument("--tries", type=int, default=1, help="runs of a module until it succeeds")
    modes.add_parser("enter", help="only private namespaces around: -- COMMAND")
    modes.add_parser("first")
    return parser


sys.exit(main(sys.argv[1:]))
