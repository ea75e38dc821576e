"""Lets stock SGLang allocate over a grid of settings and writes its bytes beside our formulas'.

Run as a program (SGLang's CPU engine, stand-ins first on PYTHONPATH) with the directory of a real
model's ``config.json``; prints a JSON object of ``[settings, stock, ours]`` by family. One process
for all, because importing SGLang takes longer than the comparisons.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_mi300a.model_dims import ModelDims, from_sizes
from sglang_mi300a.pools import pool_sizes
from sglang_mi300a.pools.pool_sizes import RankSizes, Scheduler
from sglang_mi300a.weights import model_sizes

Row = tuple[str, Any, Any]

SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "max_position_embeddings": 2048,
    "vocab_size": 512,
}
"""Sizes in which no two that matter are alike, small enough to allocate."""


def main() -> None:
    """Print every family."""
    import torch

    torch.set_num_threads(1)
    real = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        small = Path(scratch)
        config = json.loads((real / "config.json").read_text())
        config["text_config"].update(SMALL)
        (small / "config.json").write_text(json.dumps(config))
        families = {
            "state slots": state_slots(real, small),
            "tokens": tokens(real, small),
            "state pools": state_pools(real, small),
            "KV pools": kv_pools(small),
            "slots a request": slots_a_request(),
            "strategies": strategies(),
            "admitted requests": admitted_requests(small),
            "budgets": budgets(small),
            "prefill passes": prefill_passes(small),
        }
        result = {name: list(rows) for name, rows in families.items()}
    print("RESULTS " + json.dumps(result))


def dims_of(directory: Path) -> ModelDims:
    """Return our reading of a model."""
    config = json.loads((directory / "config.json").read_text())
    sizes = model_sizes.from_config(config, where="config.json")
    return from_sizes(asdict(sizes), config["text_config"], where="config.json")


def model_config(directory: Path) -> Any:
    """Return stock's reading of a model."""
    from sglang.srt.configs.model_config import ModelConfig

    return ModelConfig(str(directory))


@contextmanager
def as_rank(tp: int, state_dtype: str = "float32", conv_dtype: str = "bfloat16") -> Iterator[None]:
    """Let stock believe it is one of ``tp`` ranks with these dtypes."""
    from sglang.srt.runtime_context import get_parallel

    variables = {"SGLANG_MAMBA_SSM_DTYPE": state_dtype, "SGLANG_MAMBA_CONV_DTYPE": conv_dtype}
    os.environ.update(variables)
    try:
        with get_parallel().override(attn_tp_size=tp, attn_dcp_size=1, attn_dp_size=1):
            yield
    finally:
        for name in variables:
            del os.environ[name]


def settings(**fields: Any) -> Any:
    """Publish these server arguments to stock while the block lasts."""
    from sglang.srt.runtime_context import get_context

    return get_context().override_server_args(**fields)


DTYPES = list(itertools.product(("float32", "bfloat16"), ("float32", "bfloat16")))


def state_slots(*models: Path) -> Iterator[Row]:
    """Bytes of a state and of its replay record."""
    for directory, tp, (state, conv) in itertools.product(models, (1, 2, 4), DTYPES):
        with as_rank(tp, state, conv):
            stock = model_config(directory).hf_text_config.mamba2_cache_params
            ours = RankSizes(dims_of(directory), tp, state, conv)
            label = f"{directory.name} tp{tp} {state} {conv}"
            yield f"{label} state", stock.mamba_cache_per_req, ours.state_bytes
            for drafts in (1, 2, 4, 8):
                ring = stock.replayssm_ring_bytes_per_req(record_len=drafts)
                yield f"{label} record of {drafts}", ring, ours.replay_bytes(drafts)


def configurator(directory: Path, *, draft_layers: int | None = None, algorithm: str = "") -> Any:
    """Return stock's sizing of pools for a model, without what it does not ask for here."""
    import torch
    from sglang.srt.configs.hybrid_arch import hybrid_gdn_config, mambaish_config
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    made = object.__new__(KVCacheConfigurator)
    config = model_config(directory)
    fields = {
        "model_config": config,
        "mambaish_config": mambaish_config(config),
        "hybrid_gdn_config": hybrid_gdn_config(config),
        "layer_info": SimpleNamespace(start_layer=0, end_layer=config.num_hidden_layers),
        "ps": SimpleNamespace(pp_size=1, attn_dp_size=1),
        "server_args": SimpleNamespace(max_total_tokens=None, enable_dsa_cache_layer_split=False),
        "spec_algorithm": SpeculativeAlgorithm.from_string(algorithm or None),
        "spec_aux_config": SimpleNamespace(
            eagle_draft_num_layers=draft_layers, dflash_draft_num_layers=None
        ),
        "is_draft_worker": False,
        "use_mla_backend": False,
        "kv_cache_dtype": torch.bfloat16,
        "kv_cache_dtype_str": "bfloat16",
    }
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def tokens(*models: Path) -> Iterator[Row]:
    """Bytes that stock's budget charges for a token of KV."""
    import torch
    from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator

    kinds = ((torch.bfloat16, 2), (torch.float8_e4m3fn, 1), (torch.float32, 4))
    for directory, tp, (dtype, size) in itertools.product(models, (1, 2, 4, 8), kinds):
        if dims_of(directory).linear_num_key_heads % tp:
            continue
        with as_rank(tp):
            ours = RankSizes(dims_of(directory), tp, kv_dtype_bytes=size)
            label = f"{directory.name} tp{tp} {dtype}"
            for algorithm, layers in (("", None), ("EAGLE", 1), ("EAGLE", None)):
                kvc = configurator(directory, draft_layers=layers, algorithm=algorithm)
                kvc.kv_cache_dtype = dtype
                cell = DefaultPoolConfigurator(kvc)._cell_size
                expected = ours.budget_token_bytes(with_draft=layers == 1)
                yield f"{label} {algorithm} {layers}", cell, expected


def tensor_bytes(found: Any, seen: set[int]) -> int:
    """Return the bytes of storage behind every tensor in an object, each storage once."""
    import torch

    if isinstance(found, torch.Tensor):
        storage = found.untyped_storage()
        if storage.data_ptr() in seen:
            return 0
        seen.add(storage.data_ptr())
        return int(storage.nbytes())
    if isinstance(found, (list, tuple)):
        return sum(tensor_bytes(each, seen) for each in found)
    return 0


@contextmanager
def on_an_accelerator() -> Iterator[None]:
    """Let stock's pools take the layouts of an accelerator, in host memory."""
    from sglang.srt.mem_cache import memory_pool

    from sglang_mi300a.cpu_engine.device_redirect import CudaMeansCpu

    memory_pool._is_cpu = False
    try:
        with CudaMeansCpu():
            yield
    finally:
        memory_pool._is_cpu = True


def state_pools(real: Path, small: Path) -> Iterator[Row]:
    """Bytes of every tensor of stock's pools for states and requests."""
    grid = itertools.product(
        (1, 2), DTYPES, ((0, False), (3, False), (3, True), (4, True)), (True, False),
        ("no_buffer", "extra_buffer"), (1, 16),
    )  # fmt: skip
    for tp, dtypes, drafts, overlap, strategy, page in grid:
        yield from _state_pool(small, tp, dtypes, drafts, overlap, strategy, page, 5, 11)
    yield from _state_pool(
        real, 4, ("bfloat16", "bfloat16"), (4, True), False, "extra_buffer", 16, 2, 3
    )
    # Without an accelerator convolution windows do not share memory.
    yield from _state_pool(
        small, 2, ("float32", "float32"), (3, True), False, "extra_buffer", 16, 5, 11, shared=False
    )


def _state_pool(
    directory: Path,
    tp: int,
    dtypes: tuple[str, str],
    drafting: tuple[int, bool],
    overlap: bool,
    strategy: str,
    page: int,
    requests: int,
    slots: int,
    shared: bool = True,
) -> Iterator[Row]:
    from contextlib import nullcontext

    drafts, replay = drafting
    fields = {
        "page_size": page,
        "disable_overlap_schedule": not overlap,
        "mamba_radix_cache_strategy": strategy,
        "max_mamba_cache_size": slots,
        "enable_linear_replayssm_spec": replay,
    }
    if drafts:
        fields.update(
            speculative_algorithm="EAGLE",
            speculative_num_steps=drafts - 1,
            speculative_num_draft_tokens=drafts,
            speculative_eagle_topk=1,
        )
    where = on_an_accelerator() if shared else _redirected()
    with as_rank(tp, *dtypes), settings(**fields), where if drafts else nullcontext():
        kvc = configurator(directory)
        kvc.device = "cpu"
        pool = kvc._build_req_to_token_pool(max_num_reqs=requests)
        state = pool.mamba_pool.mamba_cache
        seen: set[int] = set()
        scratch_names = {"intermediate_ssm", "intermediate_conv_window"}
        scratch = tensor_bytes([getattr(state, n, None) for n in sorted(scratch_names)], seen)
        slot_tensors = [v for n, v in vars(state).items() if n not in scratch_names]
        states = tensor_bytes(slot_tensors, seen)
        others = {n: v for n, v in vars(pool.mamba_pool).items() if n != "mamba_cache"}
        rest_of_pool = tensor_bytes(list(others.values()), seen)
        tables = tensor_bytes([v for n, v in vars(pool).items() if n != "req_generation"], seen)
    ours = RankSizes(dims_of(directory), tp, *dtypes)
    label = (
        f"{directory.name} tp{tp} {dtypes} drafts {drafting} overlap {overlap} {strategy} {page}"
    )
    yield (
        f"{label} states",
        states + rest_of_pool,
        ours.state_pool_bytes(slots, drafts, replay=replay),
    )
    expected = ours.verify_scratch_bytes(requests, drafts, replay=replay, shared_windows=shared)
    yield f"{label} scratch", scratch, expected
    expected = pool_sizes.request_table_bytes(
        requests,
        ours.dims.max_position_embeddings,
        Scheduler(overlap, strategy),
        draft_tokens=drafts,
        draft_steps=max(0, drafts - 1),
        page_tokens=page,
    )
    yield f"{label} tables", tables, expected


def _redirected() -> Any:
    from sglang_mi300a.cpu_engine.device_redirect import CudaMeansCpu

    return CudaMeansCpu()


def kv_pools(small: Path) -> Iterator[Row]:
    """Bytes of stock's KV pools, target's and draft's."""
    import torch
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

    for tp, page, count in itertools.product((1, 2, 4), (1, 16, 64), (64, 640)):
        for is_draft in (False, True):
            with as_rank(tp), settings(page_size=page):
                kvc = configurator(small)
                kvc.device, kvc.is_draft_worker = "cpu", is_draft
                kvc.post_capture_kv_active = False
                pool = kvc._build_hybrid_linear_kv_pool(
                    max_total_num_tokens=count,
                    req_to_token_pool=SimpleNamespace(mamba_pool=None),
                    mha_pool_class=None,
                )
            assert isinstance(pool, HybridLinearKVPool)
            assert pool.full_kv_pool.k_buffer[0].dtype == torch.bfloat16
            stock = tensor_bytes([pool.full_kv_pool.k_buffer, pool.full_kv_pool.v_buffer], set())
            ours = RankSizes(dims_of(small), tp)
            make = ours.draft_kv_pool_bytes if is_draft else ours.kv_pool_bytes
            yield f"tp{tp} page {page} tokens {count} draft {is_draft}", stock, make(count, page)


def schedulers() -> Iterator[tuple[Scheduler, dict[str, Any]]]:
    """Every scheduler mode that stock allows, ours and stock's."""
    for overlap, strategy, radix, skip in itertools.product(
        (True, False), ("no_buffer", "extra_buffer", "extra_buffer_lazy"), (True, False),
        (True, False),
    ):  # fmt: skip
        if strategy == "extra_buffer_lazy" and radix and not overlap:
            continue  # stock asserts against it
        fields = {
            "disable_overlap_schedule": not overlap,
            "mamba_radix_cache_strategy": strategy,
            "disable_radix_cache": not radix,
        }
        yield Scheduler(overlap, strategy, radix, skip), fields


@contextmanager
def skipping_locks(skip: bool) -> Iterator[None]:
    """Set the variable that makes stock hold one state less a request."""
    os.environ["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"] = str(int(skip))
    try:
        yield
    finally:
        del os.environ["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"]


def slots_a_request() -> Iterator[Row]:
    """State slots that stock wants for each running request."""
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    for ours, fields in schedulers():
        with settings(**fields), skipping_locks(ours.skip_decode_lock):
            stock = object.__new__(KVCacheConfigurator)._calculate_mamba_ratio()
        yield str(ours), stock, ours.slots_per_request


def strategies() -> Iterator[Row]:
    """What stock makes of ``--mamba-radix-cache-strategy auto``."""
    from sglang.srt.arg_groups.overrides import _mamba_radix_cache_resolution

    architectures = ["Qwen3_5MoeForConditionalGeneration"]
    config = SimpleNamespace(hf_config=SimpleNamespace(architectures=architectures))
    for asked, overlap, page, backend in itertools.product(
        ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"), (True, False), (1, 16),
        ("triton", "flashinfer"),
    ):  # fmt: skip
        view = SimpleNamespace(
            get_model_config=lambda: config,
            disable_radix_cache=False,
            mamba_radix_cache_strategy=asked,
            disable_overlap_schedule=not overlap,
            page_size=page,
            linear_attn_backend=backend,
        )
        declared = _mamba_radix_cache_resolution(view)
        stock = [
            declared.get("mamba_radix_cache_strategy", asked),
            not declared.get("disable_overlap_schedule", not overlap),
        ]
        ours = pool_sizes.resolved_strategy(
            asked, overlap=overlap, page_tokens=page, triton=backend == "triton"
        )
        yield f"{asked} overlap {overlap} page {page} {backend}", stock, list(ours)


def admitted_requests(small: Path) -> Iterator[Row]:
    """Requests that stock lets run."""
    kvc = configurator(small)
    counts = itertools.product((8, 48), (64, 787936), (40, 47, 192, 239))
    for (requests, kv_tokens, slots), (ours, fields) in itertools.product(counts, schedulers()):
        sizes = {"max_running_requests": requests, "max_mamba_cache_size": slots}
        with settings(**fields, **sizes), skipping_locks(ours.skip_decode_lock):
            stock = kvc.resolve_max_num_reqs(kv_tokens)
        expected = pool_sizes.admitted_requests(requests, kv_tokens, slots, ours)
        yield f"{requests} {kv_tokens} {slots} {ours}", stock, expected


def budgets(small: Path) -> Iterator[Row]:
    """What stock's budget charges for states, KiB (it computes in floating GiB)."""
    for tp, slots, drafts, replay in itertools.product((1, 2), (40, 64), (0, 3), (True, False)):
        fields = {
            "max_running_requests": 6,
            "max_mamba_cache_size": slots,
            "disable_overlap_schedule": True,
            "mamba_radix_cache_strategy": "extra_buffer",
            "enable_linear_replayssm_spec": replay and drafts > 0,
        }
        if drafts:
            fields.update(
                speculative_algorithm="EAGLE",
                speculative_num_steps=drafts - 1,
                speculative_num_draft_tokens=drafts,
            )
        with as_rank(tp), settings(**fields):
            kvc = configurator(small, algorithm="EAGLE" if drafts else "")
            charged = 100.0 - kvc._handle_max_mamba_cache(100.0)
        ours = RankSizes(dims_of(small), tp)
        expected = pool_sizes.budget_state_bytes(
            ours, slots, 6, drafts, replay=replay and drafts > 0
        )
        yield (
            f"tp{tp} {slots} slots, {drafts} drafts, replay {replay}",
            round(charged * 2**20),
            round(expected / 1024),
        )


def prefill_passes(small: Path) -> Iterator[Row]:
    """Stock's ``--chunked-prefill-size`` by memory of the device."""
    from sglang.srt.server_args import ServerArgs

    for gib in (16, 24, 48, 80, 119.4, 141, 192, 288):
        args = ServerArgs(model_path="dummy")
        args.model_path = str(small)
        args.mem_fraction_static = 0.9
        args._parse_cuda_graph_config()
        args._handle_gpu_memory_settings(gib * 1024)
        yield (
            f"{gib} GiB",
            args.chunked_prefill_size,
            pool_sizes.default_chunk_tokens(round(gib * 2**30)),
        )


if __name__ == "__main__":
    main()
