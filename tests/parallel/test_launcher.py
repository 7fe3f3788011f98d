"""Launcher's variables that contradict one another are told at once: ranks would wait for others that never come."""

import pytest

from toolkit.core.errors import SettingsError
from toolkit.parallel.launcher import check_launcher

_WHOLE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WORLD_SIZE": "1"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"},
        _WHOLE | {"LOCAL_WORLD_SIZE": "1"},
        _WHOLE | {"LOCAL_SIZE": "1", "SLURM_STEP_NUM_TASKS": "2"},
    ],
)
def test_what_launchers_set_is_accepted(environment):
    check_launcher(environment)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "the environment has WORLD_SIZE=2, but not RANK"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "expected numbers from the launcher.*RANK=0 WORLD_SIZE=two"),
        ({"RANK": "0"}, "has RANK=0, but not WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
        (_WHOLE | {"MASTER_ADDR": ""}, "but not MASTER_ADDR"),
        # Kubernetes sets it so where a service is named master.
        (_WHOLE | {"MASTER_PORT": "tcp://10.0.0.1:80"}, "expected a port, 0 to 65,535, found MASTER_PORT=tcp://"),
        (_WHOLE | {"MASTER_PORT": "65536"}, "found MASTER_PORT=65536"),
        (_WHOLE | {"RANK": "2"}, "ranks count from 0, .*RANK=2 WORLD_SIZE=2 LOCAL_RANK=0"),
        (
            _WHOLE | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"},
            r"LOCAL_RANK=1 LOCAL_WORLD_SIZE=1 \(1 on this machine\)",
        ),
        ({"SLURM_STEP_NUM_TASKS": "4"}, r"srun started several processes \(SLURM_STEP_NUM_TASKS=4\).*run alone"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, r"mpirun started several processes \(OMPI_COMM_WORLD_SIZE=2\)"),
    ],
)
def test_contradictions_are_refused_with_the_remedy(environment, message):
    with pytest.raises(SettingsError, match=message) as refused:
        check_launcher(environment)
    assert "`deepspeed` or `torchrun`" in str(refused.value)
