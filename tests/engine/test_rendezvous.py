"""What a run of one machine listens on: the loopback alone."""

import os
from dataclasses import dataclass

import psutil
import pytest
import torch
import torch.distributed as dist

from toolkit.engine import rendezvous
from toolkit.parallel.launcher import LOOPBACK, Launched, read_launcher
from toolkit.testing.distributed import run_distributed


@dataclass(frozen=True)
class Listens:
    """Addresses at which this process listens while its ranks watch one another; with MASTER_ADDR."""

    def __call__(self) -> tuple[list[str], str | None]:
        from toolkit.engine.peers import peers_watched
        from toolkit.engine.ranks import join_ranks

        ranks = join_ranks()
        dist.all_reduce(torch.ones(1))
        with peers_watched(ranks), ranks.gathering():
            ranks.gather(ranks.rank)
            return _addresses(psutil.Process()), os.environ.get("MASTER_ADDR")


def _addresses(process):
    found = process.net_connections("inet")
    return sorted({each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN})


def test_one_rank_and_several_of_a_machine_listen_on_the_loopback_alone():
    for world_size in (1, 2):
        (found,) = run_distributed([Listens()], world_size=world_size)
        assert found == [([LOOPBACK], LOOPBACK)] * world_size


@pytest.fixture
def variables(monkeypatch):
    for name in ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def _launched(variables, **given):
    for name, value in given.items():
        variables.setenv(name, value)
    return read_launcher({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", **given})


def _store_is_here(variables, launched):
    variables.setattr(rendezvous, "_server", lambda port: port)
    variables.setenv("MASTER_PORT", "29500")
    return rendezvous.store_on_loopback(launched) == 29_500


def test_torch_listens_on_the_loopback_for_one_machine_whatever_its_name(variables):
    launched = _launched(variables, LOCAL_WORLD_SIZE="2", MASTER_ADDR="10.0.0.1", NCCL_SOCKET_IFNAME="eth1")
    assert rendezvous.meeting_place(launched) == "attempt://"
    assert [os.environ[f"{name}_SOCKET_IFNAME"] for name in ("GLOO", "NCCL")] == ["lo", "eth1"]
    assert os.environ["MASTER_ADDR"] == launched.main_address == LOOPBACK
    with rendezvous.listener(launched) as waiting:
        assert waiting.getsockname()[0] == LOOPBACK
    assert _store_is_here(variables, launched)


@pytest.mark.parametrize("local", [{"LOCAL_SIZE": "1"}, {"LOCAL_WORLD_SIZE": "1"}, {}])
def test_ranks_of_several_machines_reach_one_another(variables, local):
    launched = _launched(variables, MASTER_ADDR="10.0.0.1", **local)
    assert rendezvous.meeting_place(launched) == "attempt://"
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    assert os.environ["MASTER_ADDR"] == launched.main_address == "10.0.0.1"
    with rendezvous.listener(launched) as waiting:
        assert waiting.getsockname()[0] in ("::", "0.0.0.0")
    assert not _store_is_here(variables, launched)


def test_torchruns_own_store_is_used(variables):
    launched = _launched(variables, LOCAL_WORLD_SIZE="2", TORCHELASTIC_USE_AGENT_STORE="True")
    assert not _store_is_here(variables, launched)
    assert rendezvous.store_on_loopback(Launched(1, 1, 2, 2, is_launched=True)) is None


def test_a_process_that_nobody_launched_has_a_store_at_any_port(variables):
    """As of `launchers/pretrain.py --doctor` without a launcher."""
    variables.delenv("MASTER_PORT", raising=False)
    variables.setattr(rendezvous, "_server", lambda port: (port,))
    assert rendezvous.store_on_loopback(read_launcher({})) == (0,)
