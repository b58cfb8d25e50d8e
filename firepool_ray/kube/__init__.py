"""Kubernetes: the only part of the package that imports its client.

* ``api``: one connection: get, list, watch, apply plain dicts; every failure is a ``KubeError``
* ``watching``: a collection kept in memory by one watch, with its age
* ``nodes``: the pods behind a pool's Ray nodes, and why none come

From a pool file to manifests, without a cluster:
* ``manifests``: all of them, in order, and as YAML
* ``raycluster``, ``templates``: the RayCluster, its pods, a trainer's RayJob
* ``sharing``: how pods get their GPUs; ``admission``: who admits the pods
* ``access``: what the controller may read; ``extras``: Redis, network policy, monitors

With a cluster and its user's rights:
* ``deploy``: up and down; ``merging``: what stays with others when it is applied again
* ``standing``: what is ready, and why the rest is not
* ``doctor``: what the pool needs of the cluster; ``capacity``: whether pods fit any node
"""
