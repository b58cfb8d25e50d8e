"""A Kubernetes cluster on one machine for tests: a real control plane, pods as local processes.

``with Bed("cpu-a:cpu=8;gpu-a:cpu=8,gpu=4") as bed:`` inside ``python -m tests.kube.bed enter``.
Real: etcd, API server, scheduler, controller manager, KubeRay's operator, Kueue. Played: the
kubelets and the network. Images are ignored: a pod sees this machine's files.

Not there: limits of memory and CPU, volumes of storage classes, network policies, load balancing
by services, logs and exec through the API (``Bed.pod_log``, ``Bed.exec``), changed config maps in
pods that run.

Starting and ending
* ``bed``: ``Bed``, what tests use
* ``binaries``: builds the programs once, with Go; ``redis``: fetches that one
* ``private``: namespaces of its own around a command, so that nothing is left behind
* ``controlplane``, ``operators``: the programs' flags; ``process``: one program and its log
* ``rest``: the API in plain dicts; ``audit``: who asked the API server for what

Playing the kubelet
* ``nodes``: nodes from a line of text; ``devices``: their GPUs
* ``kubelet``: which pods are to run here; node heartbeats
* ``pod``: one pod's life; ``status``: what it reports
* ``sandbox``: a pod's namespaces; ``containers``: a process in them; ``probes``: its health
* ``environment``, ``volumes``: what a container is given; ``names``: who finds whom
* ``faults``: what can be done to all of this
"""

from tests.kube.bed.bed import Bed
from tests.kube.bed.process import BedError

__all__ = ["Bed", "BedError"]
