"""Clusters from files, and the profiles that Roundelay includes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from roundelay import config
from roundelay.errors import SettingsError, suggest
from roundelay.runtimes.cluster import Cluster

PROFILES = Path(str(resources.files("roundelay.planning"))) / "clusters"
"""The folder of the included profiles."""


def profile_names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


def find_cluster(name: str) -> Cluster:
    """Read a cluster from a file, or the profile of this name."""
    path = Path(name)
    if path.suffix != ".toml" and not path.exists():
        path = PROFILES / f"{name}.toml"
        if not path.exists():
            raise SettingsError(f"no file and no profile {suggest(name, profile_names())}")
    if not path.is_file():
        raise SettingsError(f"{path}: no such file; use a file or one of the profiles {', '.join(profile_names())}")
    return config.build(Cluster, config.read(path), str(path))
