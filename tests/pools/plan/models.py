"""The models and nodes that the plan's tests plan for."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sglang_mi300a import model_dims, served_model
from sglang_mi300a.pools import node_file, weight_sizes
from sglang_mi300a.pools.memory_plan import Asked, Plan, WeightBytes
from sglang_mi300a.pools.pool_sizes import Scheduler
from sglang_mi300a.weights import model_sizes

REAL = served_model.SHIPPED_CONFIG

TUNED = Scheduler(overlap=False)
BASE = Scheduler(overlap=True)


def dims(directory: Path = REAL) -> model_dims.ModelDims:
    """Return a model's dimensions."""
    config = json.loads((directory / "config.json").read_text())
    sizes = model_sizes.from_config(config, where="config.json")
    return model_dims.from_sizes(asdict(sizes), config["text_config"], where="config.json")


def asked(sessions: int = 48, context: int = 4096, **changes: Any) -> Asked:
    """Return what a server with MTP for so many sessions is asked for.

    With the prefill graphs of the published runs: 13 sizes up to 1,024 tokens.
    """
    usual = Asked(
        kv_tokens=sessions * context,
        state_slots=4 * sessions,
        max_running_requests=sessions,
        session_tokens=context,
        page_tokens=16,
        context_tokens=262144,
        scheduler=TUNED,
        draft_tokens=4,
        draft_steps=3,
        replay=True,
        chunk_tokens=1024,
        prefill_graph_tokens=1024,
        mem_fraction=0.9,
    )
    return replace(usual, **changes)


def plan(sessions: int = 48, context: int = 4096, **changes: Any) -> Plan:
    """Return the real model's plan on four ranks."""
    model = dims()
    weights = WeightBytes(
        weight_sizes.target_bytes(model, 4),
        weight_sizes.draft_bytes(model, 4),
        weight_sizes.lent_bytes(model, 4),
        "config.json",
    )
    node = node_file.load("mi300a-x4")
    return Plan(
        model, 4, 1, (weights,) * 4, asked(sessions, context, **changes), node.host, node.reserve
    )
