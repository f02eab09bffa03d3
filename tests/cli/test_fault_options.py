"""Options of faults on purpose, slow learners and several hosts."""

from __future__ import annotations

import pytest

from roundelay.cli.fault_options import hosts_of, parse_slow, plan_of
from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment


def test_slow_learners_are_numbers_with_factors() -> None:
    assert parse_slow(()) == {}
    assert parse_slow(("3=10", "0=1.5")) == {3: 10.0, 0: 1.5}
    for wrong in ("3", "x=2", "3=fast"):
        with pytest.raises(SettingsError, match=f"--slow {wrong}: expected LEARNER=FACTOR"):
            parse_slow((wrong,))


def test_a_plan_knows_servers_and_rejoins() -> None:
    asgd = Experiment.of({"task": {"name": "tiny"}, "strategy": {"name": "asgd", "servers": 2}, "learners": 2})
    calm = plan_of(None, asgd, 3, None)
    assert (list(calm.events), calm.servers, calm.rejoins, calm.heartbeat_timeout) == ([], 2, 3, None)
    harsh = plan_of("kill 1 at 30s", asgd, 0, 1.5)
    assert (len(harsh.events), harsh.heartbeat_timeout) == (1, 1.5)
    with pytest.raises(SettingsError):
        plan_of("kill 7 at 30s", asgd, 0, None)


def test_several_hosts_need_a_place_to_meet() -> None:
    assert hosts_of(None, 1) is None
    with pytest.raises(SettingsError, match="--hosts 2: also give --rendezvous HOST:PORT"):
        hosts_of(None, 2)
    hosts = hosts_of("10.0.0.1:29500", 2, token="secret")
    assert hosts is not None
    assert (hosts.rendezvous, hosts.count, hosts.token) == ("10.0.0.1:29500", 2, "secret")
