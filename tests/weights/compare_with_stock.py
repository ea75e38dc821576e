"""Loads models with stock SGLang's loader and with ours and lists every tensor that differs.

Run as a program (SGLang's CPU engine, stand-ins first on PYTHONPATH): reads a JSON list of cases
from stdin, prints a JSON list of results. All cases share one process, because importing SGLang
takes longer than all of them; a rank of many is played by overriding what SGLang says of its
parallel groups, which is all that building and loading a model asks for.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """One rank of one model.

    Attributes:
        checkpoint: Directory that stock loads; "" to see only whether ours refuses.
        directory: Directory that our loader loads.
        tp, ep, rank: Which rank of how many.
        part: ``"target"`` or ``"draft"``.
        dtype: ``--dtype``.
        text_only: Build without the visual tower.
        pad_heads: Pad heads as SGLang's CPU engine does before it loads.
        skip_buffers: Leave out the step that recomputes buffers (a control that must differ).
        gate_refuses: Let the gate before the first byte refuse.
        other_fails: At which agreement of the ranks another one reports a failure; 0 for never.
        options: Options of our loader.
        layout: Layout that this process's experts are in; what ours holds is undone to compare.
    """

    checkpoint: str
    directory: str
    tp: int = 1
    ep: int = 1
    rank: int = 0
    part: str = "target"
    dtype: str = "bfloat16"
    text_only: bool = False
    pad_heads: bool = False
    skip_buffers: bool = False
    gate_refuses: bool = False
    other_fails: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    layout: str = "plain/1"


@dataclass
class Result:
    """What the two loads had in common.

    Attributes:
        num_equal: Tensors that are equal byte for byte.
        num_buffers: Those among them that are buffers.
        different: Names of those that are not, or that only one model has.
        lent_is_zero: Whether our draft's embedding and head are zero.
        quantised_draft: Whether our draft's experts are MXFP4 parameters.
        after_load: What the callback after the load was told.
        error: What our loader refused with, or "".
        refusals: What the callback of a refusal was told.
        report: Our loader's report.
    """

    num_equal: int = 0
    num_buffers: int = 0
    different: list[str] = field(default_factory=list)
    lent_is_zero: bool = True
    quantised_draft: bool = False
    after_load: list[Any] = field(default_factory=list)
    error: str = ""
    refusals: list[str] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    """Compare the cases on stdin."""
    cases = [Case(**row) for row in json.load(sys.stdin)]
    stock = _Stock(cases[0].directory)
    results = [stock.compare(case) for case in cases]
    print("RESULTS " + json.dumps([asdict(result) for result in results]))


class _Stock:
    def __init__(self, any_model: str) -> None:
        import sglang.srt.layers.quantization as quantization
        import torch
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.distributed.parallel_state import (
            init_distributed_environment,
            initialize_model_parallel,
        )
        from sglang.srt.layers.dp_attention import initialize_dp_attention
        from sglang.srt.runtime_context import publish
        from sglang.srt.server_args import ServerArgs

        from sglang_mi300a.moe.stock import MI300AQuarkConfig
        from sglang_mi300a.weights.private_entry import install_private_loader

        # Memory that nothing was written to is full of NaN (or 255): two loaders that both forget
        # a tensor must not look equal because of what lay there before.
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        quantization.QUANTIZATION_METHODS["quark"] = MI300AQuarkConfig
        self.server_args = ServerArgs(
            model_path=any_model,
            device="cpu",
            disable_overlap_schedule=True,
            attention_backend="torch_native",
        )
        publish(self.server_args, role="scheduler")
        meeting_place = Path(tempfile.mkdtemp()) / "one-rank"
        init_distributed_environment(
            backend="gloo",
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{meeting_place}",
        )
        initialize_model_parallel(tensor_model_parallel_size=1)
        initialize_dp_attention(server_args=self.server_args, model_config=ModelConfig(any_model))
        install_private_loader()

    def compare(self, case: Case) -> Result:
        from sglang_mi300a.errors import UserError
        from sglang_mi300a.weights.stock import PrivateModelLoader

        told: list[Any] = []
        refusals: list[str] = []
        PrivateModelLoader.on_refusal = refusals.append
        PrivateModelLoader.all_gather = _Ranks(case.other_fails)
        PrivateModelLoader.before_first_byte = _refuse if case.gate_refuses else None
        PrivateModelLoader.after_load = lambda model, is_draft: told.append(is_draft)
        with self._as_rank(case):
            theirs = self._load(case, case.checkpoint, "safetensors", {})
            try:
                with _experts_in(case.layout):
                    ours = self._load(case, case.directory, "private", case.options)
            except UserError as error:
                return Result(error=str(error), after_load=told, refusals=refusals)
        result = _compare(theirs, ours, case.part == "draft") if theirs is not None else Result()
        result.after_load = told
        result.report = asdict(PrivateModelLoader.reports[case.part])
        return result

    @contextmanager
    def _as_rank(self, case: Case) -> Any:
        from sglang.srt.runtime_context import get_parallel

        moe_tp = case.tp // case.ep
        with get_parallel().override(
            tp_size=case.tp,
            tp_rank=case.rank,
            attn_tp_size=case.tp,
            attn_tp_rank=case.rank,
            moe_ep_size=case.ep,
            moe_ep_rank=case.rank // moe_tp,
            moe_tp_size=moe_tp,
            moe_tp_rank=case.rank % moe_tp,
        ):
            yield

    def _load(self, case: Case, directory: str, load_format: str, options: Any) -> Any:
        from sglang.srt.configs.device_config import DeviceConfig
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.configs.update_config import adjust_config_with_unaligned_cpu_tp
        from sglang.srt.model_loader.loader import get_model_loader

        from sglang_mi300a.weights import stock

        if not directory:
            return None
        overrides = {"language_model_only": True} if case.text_only else {}
        model_config = ModelConfig(
            directory,
            dtype=case.dtype,
            is_draft_model=case.part == "draft",
            model_override_args=json.dumps(overrides),
        )
        load_config = LoadConfig(load_format=load_format, model_loader_extra_config=options)
        if case.pad_heads:
            model_config = adjust_config_with_unaligned_cpu_tp(model_config, load_config, case.tp)
        else:  # as on a GPU; the model class asks for these two names on a CPU all the same
            text = model_config.hf_text_config
            text.linear_num_key_heads_cpu = text.linear_num_key_heads
            text.linear_num_value_heads_cpu = text.linear_num_value_heads
        recompute = stock._recompute_buffers
        if case.skip_buffers and load_format == "private":
            stock._recompute_buffers = lambda model: None
        try:
            loader = get_model_loader(load_config, model_config)
            return loader.load_model(
                model_config=model_config, device_config=DeviceConfig("cpu", 0)
            )
        finally:
            stock._recompute_buffers = recompute


@contextmanager
def _experts_in(layout: str) -> Any:
    """Have loader and expert layers take a layout, as a launcher's decision does."""
    from sglang_mi300a import settings
    from sglang_mi300a.weights.stock import PrivateModelLoader

    settings.publish(
        settings.Resolved("", "cpu", "", 1, 1, 1, False, 0, 0, 0, "", expert_layout=layout)
    )
    before, PrivateModelLoader.layout_id = PrivateModelLoader.layout_id, layout
    try:
        yield
    finally:
        PrivateModelLoader.layout_id = before
        settings.withdraw()


class _Ranks:
    """Stands in for the exchange between this rank and a second one."""

    def __init__(self, fails_at: int) -> None:
        self._fails_at = fails_at
        self._calls = 0

    def __call__(self, mine: Any) -> list[Any]:
        self._calls += 1
        failure = ("a part", "not readable", "a file", "copy it again")
        return [mine, failure if self._calls == self._fails_at else None]


def _refuse() -> None:
    from sglang_mi300a.errors import UserError

    raise UserError("gate 1", found="a dead hook", allowed="live hooks", do="nothing")


def _compare(theirs: Any, ours: Any, is_draft: bool) -> Result:
    result = Result()
    left, right = _tensors(theirs), _without_streams(_tensors(ours))
    lent = {"model.embed_tokens.weight", "lm_head.weight"} if is_draft else set()
    buffers = {name for name, _ in theirs.named_buffers()}
    result.quantised_draft = is_draft and "model.layers.0.mlp.experts.w2_weight_scale" in right
    result.lent_is_zero = all(bool((right[name] == 0).all()) for name in lent)
    for name in sorted(({*left, *right}) - lent):
        if name not in left or name not in right or not _same(left[name], right[name]):
            result.different.append(name)
        else:
            result.num_equal += 1
            result.num_buffers += name in buffers
    return result


def _tensors(model: Any) -> dict[str, Any]:
    """Return every tensor that hangs on a module: parameters, buffers, aliases and views."""
    import torch

    found = {}
    for prefix, module in model.named_modules():
        places = (module._parameters, module._buffers, vars(module))
        for place in places:
            for name, value in place.items():
                if isinstance(value, torch.Tensor):
                    found[f"{prefix}.{name}" if prefix else name] = value.detach()
    return found


def _without_streams(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors with every stack of streams undone to what SGLang's classes hold."""
    import numpy as np
    import torch

    from sglang_mi300a.stream_layout import Stream

    result = {}
    for name, tensor in tensors.items():
        prefix, _, last = name.rpartition(".")
        if not last.endswith("_stream"):
            result[name] = tensor
            continue
        undone = [Stream().undo({last: expert.numpy()}) for expert in tensor]
        for plain in undone[0]:
            stack = np.stack([expert[plain] for expert in undone])
            result[f"{prefix}.{plain}"] = torch.from_numpy(stack)
    return result


def _same(left: Any, right: Any) -> bool:
    import torch

    if left.shape != right.shape or left.dtype != right.dtype or left.stride() != right.stride():
        return False
    return torch.equal(
        left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8)
    )


if __name__ == "__main__":
    main()
