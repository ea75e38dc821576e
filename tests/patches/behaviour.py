"""Run by tests in a process of its own: what the SGLang on PYTHONPATH does, as one line of JSON."""

import gzip
import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

OUT = Path(sys.argv[1])


def processes_that_load_plugins():
    """Return the first functions of processes in which a plugin was loaded before they failed."""
    found = []
    for module, function, num_arguments in (
        ("detokenizer_manager", "run_detokenizer_process", 2),
        ("data_parallel_controller", "run_data_parallel_controller_process", 3),
    ):
        run = getattr(importlib.import_module(f"sglang.srt.managers.{module}"), function)
        marks = OUT / function
        child = os.fork()
        if child == 0:
            os.environ["MARKS"] = str(marks)
            try:
                run(*[None] * num_arguments)  # no settings: it fails once it reads one
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        found += [function] if marks.exists() else []
    return found


def models_saved():
    """Return which models a remote save with an EAGLE draft saves, and where to."""
    from sglang.srt.managers.scheduler_components import weight_updater
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    saved = []

    def runner(name):
        save = SimpleNamespace(save_remote_model=lambda url: saved.append([name, url]))
        return SimpleNamespace(weight_exporter=save)

    worker = EAGLEWorkerV2.__new__(EAGLEWorkerV2)
    worker._draft_worker = SimpleNamespace(draft_runner=runner("draft"))
    updater = weight_updater.SchedulerWeightUpdaterManager(
        tp_worker=SimpleNamespace(model_runner=runner("target")),
        draft_worker=worker,
        tp_cpu_group=None,
        memory_saver_adapter=None,
        flush_cache=None,
        is_fully_idle=None,
    )
    try:
        updater.save_remote_model({"url": "one", "draft_url": "two"})
    except AttributeError as error:
        saved.append(str(error))
    return saved


def merged_profiles():
    """Return the marks in each merged trace: of a profile with a prefix, and of two stages."""
    import torch
    from sglang.srt.managers.scheduler_components import profiler_manager
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    store = torch.distributed.FileStore(str(OUT / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    alone = SimpleNamespace(
        tp_rank=0, tp_size=1, dp_rank=0, dp_size=1, pp_rank=0, pp_size=1, moe_ep_rank=0,
        moe_ep_size=1, gpu_id=0,
    )  # fmt: skip
    profiler = profiler_manager.SchedulerProfilerManager(
        ps=alone, dp_tp_cpu_group=None, get_forward_ct=lambda: 0
    )
    for name, prefix, stages in (
        ("prefixed", "run", [None]),
        ("staged", "", [ForwardMode.EXTEND, ForwardMode.DECODE]),
    ):
        profiler._init_profile(
            output_dir=str(OUT), start_step=None, num_steps=None, activities=["CPU"],
            with_stack=False, record_shapes=False, profile_by_stage=stages != [None],
            profile_id=name, merge_profiles=True, profile_prefix=prefix,
        )  # fmt: skip
        for stage in stages:
            profiler._start_profile(stage)
            with torch.profiler.record_function(f"mark {stage.name if stage else 'whole'}"):
                torch.ones(2).sum()
            profiler._stop_profile(stage)
    return {path.name: _marks(path) for path in sorted(OUT.glob("merged-*.trace.json.gz"))}


def _marks(path):
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {str(event.get("name")) for event in events}
    return sorted(name for name in names if name.startswith("mark "))


if __name__ == "__main__":
    facts = {
        "saved": models_saved(),
        "merged": merged_profiles(),
        "plugins": processes_that_load_plugins(),
    }
    print("\n" + json.dumps(facts))
