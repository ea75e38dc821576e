"""A second SGLang plugin, for ranks on the CPU engine: the rung of their expert layers.

``STANDIN_RUNG=hip`` gives each rank a stand-in HIP runtime and the first rung: the code object
runs in the served model, interpreted. ``STANDIN_RUNG=torch`` has the torch rung round inner values
as the kernels do. SGLang finds it by the entry point beside it, with this folder on PYTHONPATH.
"""

import multiprocessing
import os
from dataclasses import replace

NAME = "STANDIN_RUNG"


def activate() -> None:
    """Prepare a rank; in the launcher do nothing."""
    if multiprocessing.parent_process() is None:
        return
    from sglang_mi300a import settings

    record = settings.resolved()
    assert record is not None
    if os.environ[NAME] == "torch":
        settings.publish(replace(record, moe_intermediate="bfloat16"))
    else:
        _run_the_code_object()


def _run_the_code_object() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_mi300a import hooking
    from sglang_mi300a.launcher import kernels
    from sglang_mi300a.moe import hooks, ladder
    from tests.launcher import standin

    hip = standin.mapped()
    hip.reset()
    hip.execute_machine_code()

    def note(kernel, arguments):
        # The shared expert rides along, so SGLang's own gate of it, a hook here, is not called.
        hooking.reached("cpu_engine.shared_expert_gate")
        hip.note_buffers(kernel, arguments)

    kernels.observers.append(note)
    ladder.ORDER = {"cpu": ("hip",)}
    # Meant for gfx942, and so not installed on a CPU.
    draft = [seam for seam in hooks.HOOKS if seam.name == hooks.DRAFT_HOOK]
    hooking.register(draft, HookRegistry, HookType)
