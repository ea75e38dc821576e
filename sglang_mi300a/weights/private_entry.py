"""Makes ``--load-format private`` lead to our loader, in a rank process."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from sglang_mi300a import boot_timeline
from sglang_mi300a import layout as layouts
from sglang_mi300a.gates import RankGates
from sglang_mi300a.settings import Resolved

MODULE = "sglang.private.private_model_loader"
"""The module that SGLang imports for this load format; no such package ships with it."""


def install_private_loader(
    gates: RankGates | None = None,
    record: Resolved | None = None,
    after_load: Sequence[Callable[[Any, bool], None]] = (),
) -> None:
    """Register the loader class where SGLang looks for it.

    Everything is imported before the entry is made: SGLang turns any ``ImportError`` on that way
    into one line that does not say what was missing.

    Args:
        gates: This rank's gates; gate 1 is passed before the first byte is read, gate 2 is put in
            front of the loaded target. Through them the ranks learn of each other's failures.
        record: The launcher's decision: its load options become the defaults, and experts are kept
            in its layout.
        after_load: Called with each loaded model, and whether it is the draft.
    """
    from sglang_mi300a.rank_agreement import alone
    from sglang_mi300a.weights.stock import PrivateModelLoader

    PrivateModelLoader.all_gather = staticmethod(gates.all_gather if gates else alone)
    PrivateModelLoader.default_options = dict(record.load_options) if record else {}
    PrivateModelLoader.layout_id = record.expert_layout if record else layouts.PLAIN.id

    def loaded(model: Any, is_draft: bool) -> None:
        for call in after_load:
            call(model, is_draft)
        if gates is not None:
            name = "draft" if is_draft else "target"
            report = PrivateModelLoader.reports[name]
            gates.facts[f"weights.{name}"] = asdict(report)
            boot_timeline.mark(f"load: {name}", report.num_bytes)
            if not is_draft:
                gates.guard_forward(model)

    PrivateModelLoader.after_load = loaded
    if gates is not None:
        PrivateModelLoader.before_first_byte = gates.before_first_byte
        PrivateModelLoader.on_refusal = partial(gates.report, "refused")
    module = types.ModuleType(MODULE, PrivateModelLoader.__doc__)
    module.PrivateModelLoader = PrivateModelLoader  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
