"""Kubernetes: the only part of the package that imports its client.

* ``api``: one connection: get, list, watch, apply plain dicts; every failure is a ``KubeError``
* ``watching``: a collection kept in memory by one watch, with its age
"""
