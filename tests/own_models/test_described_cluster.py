"""Clusters by name, by numbers and as objects."""

from __future__ import annotations

import pytest

from roundelay.errors import SettingsError
from roundelay.own_models.described_cluster import describe_cluster
from roundelay.runtimes.cluster import Cluster


def test_a_profile_has_the_models_own_size() -> None:
    assert describe_cluster("v100-ethernet", 4).model_bytes is None
    assert describe_cluster(Cluster(model_bytes=5.0), 4).model_bytes == 5.0


def test_numbers_give_each_learner_a_node() -> None:
    made = describe_cluster({"latency_seconds": 1e-3, "bandwidth": 1e6}, 4, 0.5)
    assert (made.nodes, made.inter_node.bandwidth, made.compute.seconds) == (4, 1e6, 0.5)


def test_bad_times_are_refused() -> None:
    with pytest.raises(SettingsError, match="gradient_seconds must be above 0"):
        describe_cluster(None, 4, -1.0)
