"""Clusters from files, and the profiles that Roundelay includes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from roundelay import config
from roundelay.included_files import find_file, read_extended
from roundelay.runtimes.cluster import Cluster

PROFILES = Path(str(resources.files("roundelay.planning"))) / "clusters"
"""The folder of the included profiles."""


def profile_names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


def find_cluster(name: str) -> Cluster:
    """Read a cluster from a file, or the profile of this name."""
    path = find_file("cluster", name)
    return config.build(Cluster, read_extended(path, "cluster"), str(path))
