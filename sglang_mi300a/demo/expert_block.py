"""One expert layer of true sizes: its gfx942 code, executed in the checkout's interpreter."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_mi300a import code_objects, served_model, settings
from sglang_mi300a.demo import child
from sglang_mi300a.demo.account import Account, Command
from sglang_mi300a.demo.journey import Journey
from sglang_mi300a.errors import EXIT_OK

PROGRAM = "tests.moe.kernels.expert_block"
NUM_TOKENS, NUM_EXPERTS = 16, 96
TP = 4


def run(journey: Journey, account: Account) -> None:
    """Run the layer, or say what is missing for it."""
    del journey
    root = checkout()
    if root is None:
        account.not_run(
            "the interpreter of gfx942 machine code is part of the checkout, not of the installed "
            "package; `make demo` in a checkout runs this step"
        )
        return
    text = served_model.read(served_model.SHIPPED_CONFIG).text
    hidden, top_k = text["hidden_size"], text["num_experts_per_tok"]
    inner, num_experts = text["moe_intermediate_size"] // TP, text["num_experts"]
    account.say(
        f"one expert layer as a rank of Qwen3.5-397B-A17B at TP {TP} has it: {hidden} wide, "
        f"{inner} neurons an expert, top {top_k}, MXFP4; {NUM_TOKENS} tokens. Shrunk: "
        f"{NUM_EXPERTS} experts instead of {num_experts}, and no shared expert beside them; "
        "nothing else. Weights and routing are random."
    )
    numbers = {
        "--tokens": NUM_TOKENS, "--experts": NUM_EXPERTS, "--top-k": top_k, "--inner": inner,
    }  # fmt: skip
    words = [word for pair in numbers.items() for word in map(str, pair)]
    exit_code, output = child.run(
        [sys.executable, "-m", PROGRAM, *words],
        {"PYTHONPATH": settings.python_path_with(root), "OMP_NUM_THREADS": "1"},
        folder=root,
    )
    if exit_code != EXIT_OK:
        account.add(Command(f"python -m {PROGRAM} {' '.join(words)}", output, exit_code))
        account.fault(f"the interpreter ended with {exit_code}")
        return
    found = json.loads(output.strip().splitlines()[-1])
    for fault in judge(found, code_objects.load("moe").digest):
        account.fault(fault)
    account.table(
        ("kernel", "workgroups", "instructions", "of these matrix"),
        [
            (
                row["name"],
                row["workgroups"],
                f"{row['instructions']:,}",
                f"{row['matrix_instructions']:,}",
            )
            for row in found["kernels"]
        ],
    )
    account.say(
        f"the code object that the package ships (SHA-256 {found['code_sha256'][:12]}…), launched "
        f"by the package's own rung on a stand-in HIP runtime, {found['seconds']:.0f} s: relative "
        f"L2 {found['relative_l2']:.2g} from the float32 reference, {found['tolerance']:.2g} "
        "allowed (three roundings to bf16). It shows results, not speed."
    )


def checkout() -> Path | None:
    """Return the root of the checkout that this package lies in, or None."""
    root = code_objects.source_tree()
    program = Path(*PROGRAM.split(".")).with_suffix(".py")
    return root if root is not None and (root / program).is_file() else None


def judge(found: Mapping[str, Any], digest: str) -> Iterator[str]:
    """Yield what of a layer's run goes against it.

    Args:
        found: What the program printed.
        digest: SHA-256 of the code object that the package loads.
    """
    if found["code_sha256"] != digest:
        yield f"another code object was run: {found['code_sha256']}"
    if not found["relative_l2"] < found["tolerance"]:
        yield f"relative L2 {found['relative_l2']:.3g}, allowed {found['tolerance']:.3g}"
    if not sum(row["matrix_instructions"] for row in found["kernels"]):
        yield "no matrix instruction was executed"
    for row in found["kernels"]:
        if row["uninitialised_reads"]:
            yield f"{row['name']} read what was never written"
