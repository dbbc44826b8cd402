"""Lightning does what it is told: neither the environment nor a signal changes what a fit is."""

import inspect
import os
import signal

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy

from s2r_torch.errors import Terminated
from s2r_torch.predictors.training.trainer import run_steps, tensorboard_logger, trainer_arguments

CPU = torch.device("cpu")

ENVIRONMENTS = {
    "slurm": {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "job", "SLURM_NTASKS": "4"},
    "slurm per node": {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "job", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"},
    "slurm nodes": {"SLURM_NTASKS": "1", "SLURM_NNODES": "2", "SLURM_JOB_ID": "1", "SLURM_PROCID": "3"},
    "torchrun": {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "1",
    },
    "lsf": {"LSB_JOBID": "1", "LSB_DJOB_RANKFILE": "x", "JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_SIZE": "2"},
    "trainer": {
        "PL_TRAINER_LIMIT_TRAIN_BATCHES": "0.1",
        "PL_TRAINER_FAST_DEV_RUN": "True",
        "PL_TRAINER_PRECISION": "bf16-mixed",
        "PL_TRAINER_GRADIENT_CLIP_VAL": "0.01",
        "PL_TRAINER_MAX_TIME": "00:00:00:00",
        "PL_TRAINER_ACCUMULATE_GRAD_BATCHES": "4",
        "PL_TRAINER_NUM_NODES": "2",
        "PL_TRAINER_DEVICES": "2",
        "PL_TRAINER_STRATEGY": "ddp",
        "PL_TRAINER_MAX_EPOCHS": "0",
    },
}


class Line(LightningModule):
    """Learns 0 from 1, and can be stopped on the way."""

    def __init__(self, stop: int = -1, number: int = signal.SIGTERM):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.stop, self.number, self.seen = stop, number, []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, number):
        self.seen.append(int(number))
        if int(number) == self.stop:
            os.kill(os.getpid(), self.number)
        loss = (self.weight * (1 + int(number))).square().mean()
        if self.logger is not None:
            self.log("loss", loss.detach())
        return loss


def trained(**line) -> Line:
    module = Line(**line)
    run_steps(module, range(30), CPU, False, None)
    return module


def test_every_argument_is_given():
    given = trainer_arguments(10, CPU, False, None)
    assert set(given) == set(inspect.signature(Trainer).parameters)
    assert isinstance(given["strategy"], SingleDeviceStrategy)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_environment_changes_nothing(name, monkeypatch):
    wanted = trained()
    for key, value in ENVIRONMENTS[name].items():
        monkeypatch.setenv(key, value)
    found = trained()
    assert found.seen == list(range(30)) and found.weight.dtype == torch.float32
    assert torch.equal(found.weight, wanted.weight)


def test_a_rank_in_the_environment_does_not_silence_tensorboard(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr("lightning.pytorch.utilities.rank_zero_only.rank", 3)
    run_steps(Line(), range(30), CPU, tensorboard_logger(tmp_path, "line"), tmp_path)
    assert any(path.stat().st_size for path in tmp_path.rglob("events.out*"))


def handlers(number: int, frame: object) -> None:
    raise {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}[number]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
@pytest.mark.parametrize("handler", [signal.SIG_DFL, handlers], ids=["alone", "in a script"])
def test_signals_come_out_as_what_they_are(number, error, handler):
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        if handler != signal.SIG_DFL:
            signal.signal(number, handler)
        with pytest.raises(KeyboardInterrupt) as found:
            trained(stop=5, number=number)
        assert found.type is error
    finally:
        for n, old in before.items():
            signal.signal(n, old)
