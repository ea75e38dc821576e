"""Neither conversion nor load holds more than its buffers, whatever the model's size."""

import subprocess
import sys

import pytest

from tests import repository
from tests.weights.checkpoints import SMALL_TEXT
from tests.weights.conftest import make_checkpoint

MIB = 1 << 20


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """A checkpoint of 208 MB; its embedding alone has 102 MB."""
    text = {**SMALL_TEXT, "hidden_size": 512, "vocab_size": 100_000, "num_experts": 2}
    model = make_checkpoint(tmp_path_factory.mktemp("big") / "checkpoint", text=text, mtp=False)
    assert sum(path.stat().st_size for path in model.iterdir()) > 198 * MIB
    return model


@pytest.fixture(scope="module")
def big_artifact(big, tmp_path_factory):
    out = tmp_path_factory.mktemp("big-artifact") / "out"
    return out, grown_bytes(SHARD, big, out)


GROWN = """
import sys
from pathlib import Path
{imports}
def peak_kib():  # of this program alone: getrusage would count its parent's peak too
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
before = peak_kib()
{work}
print((peak_kib() - before) * 1024)
"""

SHARD = (
    "from sglang_mi300a.weights.shard import shard_weights",
    "shard_weights(sys.argv[1], sys.argv[2], tp=2, sglang='==0.5.18', jobs=1)",
)

NOWHERE = """
from contextlib import nullcontext
class Nowhere:
    is_straight = False
    def start_thread(self): pass
    def pinned(self, buffers): return nullcontext()
    def destination(self, name): return None
    def write(self, name, offset, data): pass
"""

LOAD_ARTIFACT = (
    "from sglang_mi300a.weights import artifact, filling\n"
    "from sglang_mi300a.weights.loader_options import LoaderOptions" + NOWHERE,
    """
found = artifact.read(Path(sys.argv[2]))
tensors = artifact.check_files(found, 0, "target")
options = LoaderOptions(ring_bytes=16 << 20, threads=2)
assert filling.from_artifact(found, tensors, Nowhere(), options).num_bytes > 95 << 20
""",
)

LOAD_CHECKPOINT = (
    "import json\n"
    "from sglang_mi300a.layout import PLAIN\n"
    "from sglang_mi300a.weights import checkpoint, filling, model_sizes, plan\n"
    "from sglang_mi300a.weights.loader_options import LoaderOptions" + NOWHERE,
    """
model = Path(sys.argv[1])
sizes = model_sizes.from_config(json.loads((model / "config.json").read_text()), where="")
found = checkpoint.read(model)
at = plan.Placement(1, 1, 0)
ours = plan.make(sizes, found.sources(), at, "target", text_only=True, where="")
options = LoaderOptions(ring_bytes=16 << 20, threads=2)
assert filling.from_checkpoint(ours, found, PLAIN, Nowhere(), options).num_bytes > 190 << 20
""",
)


ONE_LAYER = 16 * (512 * 4096 + 4096 * 256) * 17 // 32
"""Bytes of the experts below."""

LOAD_STREAMS = (
    LOAD_CHECKPOINT[0].replace("layout import PLAIN", "stream_layout import Stream"),
    LOAD_CHECKPOINT[1].replace("PLAIN", "Stream()").replace("190 << 20", "104 << 20"),
)


def grown_bytes(program, *paths):
    """Return by how much the peak memory of a fresh process grows over the work."""
    imports, work = program
    ran = subprocess.run(
        [sys.executable, "-c", GROWN.format(imports=imports, work=work), *map(str, paths)],
        cwd=repository.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


def test_converting_takes_one_buffer_a_job(big_artifact):
    """Measured 33 MiB with one buffer of 32; a copy of the largest tensor would be 98 MiB more."""
    assert big_artifact[1] < 64 * MIB


@pytest.mark.parametrize(
    "program", [LOAD_ARTIFACT, LOAD_CHECKPOINT], ids=["artifact", "checkpoint"]
)
def test_loading_takes_the_ring(big, big_artifact, program):
    """Measured 16 and 9 MiB with a ring of 16 (a buffer is not there before it is used)."""
    assert grown_bytes(program, big, big_artifact[0]) < 40 * MIB


def test_a_checkpoint_is_laid_out_anew_in_far_less_than_a_layer(tmp_path):
    """Four layers of experts of 27 MB each; a few experts at a time, and the ring of 16 MiB."""
    text = {**SMALL_TEXT, "hidden_size": 4096, "moe_intermediate_size": 256, "num_experts": 16}
    model = make_checkpoint(tmp_path / "checkpoint", text=text, mtp=False)
    grown = grown_bytes(LOAD_STREAMS, model)
    assert grown < ONE_LAYER, f"{grown / 2**20:.1f} MiB"


PLAN_THE_REAL_MODEL = (
    "from sglang_mi300a.layout import PLAIN\n"
    "from sglang_mi300a.weights import model_sizes, plan, shard, steps\n"
    "from tests.weights import checkpoints",
    """
text = checkpoints.REAL_TEXT
sources = {name: plan.Source(*row) for name, row in checkpoints.shapes(text).items()}
sizes = model_sizes.from_config(checkpoints.config(text), where="")
plans = shard._plans(sizes, sources, 4, 1, "replicated", True, True, "")
parts = [
    part
    for name in plans
    for part in shard._split(name, steps.groups(plans[name], PLAIN), shard.DEFAULT_PART_BYTES)
]
assert len(parts) > 30
assert shard._buffer_bytes(parts, sources) <= shard.JOB_BUFFER_BYTES
""",
)


@pytest.mark.slow
def test_the_plan_of_the_real_model_leaves_room_for_the_buffers():
    """Measured 307 MiB for 186,791 tensors on four ranks; with buffers far below 4 GiB."""
    assert grown_bytes(PLAN_THE_REAL_MODEL) < 600 * MIB
