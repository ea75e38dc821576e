"""One expert layer of true sizes through the package's own rung, on the interpreter; as JSON.

    python -m tests.moe.kernels.expert_block --tokens 16 --experts 12 --top-k 10

The package loads its shipped code object through its launcher, as on a GPU; a stand-in HIP runtime
executes every instruction (``tests/gfx942``). For `sglang-mi300a demo` in a checkout: the
interpreter is no part of the package. Needs the set-up's clang and g++.
"""

import argparse
import json
import time

import numpy as np
import torch

from sglang_mi300a import code_objects
from sglang_mi300a.moe.hip_rung import HipRung
from sglang_mi300a.moe.rungs import Experts, ExpertSizes
from tests.gfx942 import room
from tests.launcher import standin
from tests.moe.kernels import running

CPU = torch.device("cpu")


def run(num_tokens: int, num_experts: int, top_k: int, inner: int) -> dict:
    """Return what one layer gave and what was executed for it."""
    began = time.monotonic()
    weights = running.random_weights(num_experts, inner)
    batch = running.random_batch(num_tokens, num_experts, top_k, "uniform")
    sizes = ExpertSizes(num_experts, running.HIDDEN, inner, top_k, "stream/1")
    executed = []
    with standin.fresh() as hip:
        hip.execute(lambda launch: executed.append(hip.interpret(launch)))
        streams = {
            f"{projection}_stream": hip.copy(
                torch.from_numpy(
                    np.array(running.stream_of(weights, projection, "subnormals"))
                ).view(num_experts, -1)
            )
            for projection in ("w13", "w2")
        }
        rung = HipRung(max_tokens=num_tokens)
        prepared = rung.prepare(Experts("one layer", sizes, streams))
        probed = len(executed)
        out = rung.apply(
            prepared,
            hip.copy(torch.from_numpy(np.array(batch.hidden)).view(torch.bfloat16)),
            hip.copy(torch.from_numpy(batch.ids)),
            hip.copy(torch.from_numpy(batch.weights)),
        )
        got = out.float().numpy()
    return {
        "code_sha256": code_objects.load("moe").digest,
        "decode": prepared.weights,
        "relative_l2": room.relative_l2(got, running.expected(weights, batch)),
        "tolerance": running.THREE_ROUNDINGS,
        "kernels": [
            {
                "name": one.kernel,
                "workgroups": one.workgroups,
                "instructions": one.instructions,
                "matrix_instructions": one.by_class["mfma"],
                "uninitialised_reads": len(one.uninitialised_reads),
            }
            for one in executed[probed:]
        ],
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--experts", type=int, required=True)
    parser.add_argument("--top-k", type=int, required=True)
    parser.add_argument("--inner", type=int, default=256, help="neurons of an expert on one rank")
    args = parser.parse_args()
    print(json.dumps(run(args.tokens, args.experts, args.top_k, args.inner)))


if __name__ == "__main__":
    main()
