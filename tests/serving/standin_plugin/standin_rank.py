"""A second SGLang plugin: gives each rank a stand-in HIP runtime, and the first rung to try on it.

The code object then runs in the served model, interpreted. Found by SGLang through the entry point
beside this file, with this folder on PYTHONPATH.
"""

import multiprocessing


def activate() -> None:
    """Map the runtime into a rank; in the launcher do nothing."""
    if multiprocessing.parent_process() is None:
        return
    from sglang_mi300a import hooking
    from sglang_mi300a.launcher import kernels
    from sglang_mi300a.moe import ladder
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
