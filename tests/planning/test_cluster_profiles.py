"""Included clusters, and clusters from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.errors import SettingsError
from roundelay.planning.cluster_profiles import find_cluster, profile_names


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_is_a_cluster_with_a_source(name: str) -> None:
    cluster = find_cluster(name)
    assert cluster.name
    assert cluster.source
    assert cluster.compute.seconds + cluster.compute.seconds_per_frame > 0


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nnodes = 3\n', encoding="utf-8")
    assert find_cluster(str(path)).nodes == 3


def test_names_and_files_that_are_unknown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean 'laptop'"):
        find_cluster("latop")
    with pytest.raises(SettingsError, match=r"none\.toml: no such file; give a TOML file, or one of home-offices"):
        find_cluster(str(tmp_path / "none.toml"))
