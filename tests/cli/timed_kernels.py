"""`kernels bench` and `tune moe` on a stand-in runtime: launches are real, times made up."""

import pytest
import torch

from sglang_mi300a import device
from sglang_mi300a.cli import kernels as command
from sglang_mi300a.moe import ladder, layer_timing, tile_choice
from sglang_mi300a.moe.kernels import prediction
from sglang_mi300a.moe.torch_rung import TorchRung
from tests.launcher import standin
from tests.moe.timing import TINY, FakedTimer

MI300A = device.Accelerator(0, "AMD Instinct MI300A", "gfx942", 228, True, 0)


class Node:
    """A node with an MI300A as these commands see it.

    Attributes:
        timer: What the launches took.
        us_of: Set it to say otherwise.
    """

    def __init__(self, hip) -> None:
        self.hip = hip
        self.us_of = lambda kernel, groups: 100.0
        self.timer = FakedTimer(hip, lambda *launch: self.us_of(*launch))


@pytest.fixture
def node(monkeypatch, tmp_path):
    """One MI300A, of which a layer has four experts; state goes to a directory of the test's."""
    monkeypatch.setenv("SGLANG_MI300A_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(prediction, "SHAPES", (*prediction.SHAPES, TINY))
    monkeypatch.setattr(device, "accelerators", lambda *_: [MI300A])
    monkeypatch.setattr(torch, "device", lambda *_: CPU)
    with standin.fresh() as hip:
        found = Node(hip)
        hip.execute(lambda launch: None)
        monkeypatch.setattr(layer_timing, "EventTimer", lambda device: found.timer)
        monkeypatch.setattr(command, "timed_device", lambda what, would: CPU)
        tile_choice.in_use.cache_clear()
        yield found
    tile_choice.in_use.cache_clear()


CPU = torch.device("cpu")


def torch_rung_alone(name, make, device, sizes):
    """Stand for `ladder.examine_one`: the torch rung passed, others are not there."""
    if name != "torch":
        return ladder.Examined(name, "not here")
    test = ladder.selftest.SelfTest("torch", 1e-3, (9,))
    return ladder.Examined(name, test=test, instance=TorchRung())
