"""The rung that runs expert layers in Triton, on any GPU that Triton compiles for.

It reads ``stream/1`` and ``plain/1`` as they are loaded, rewrites nothing and keeps nothing but
strides. What a launch looks like follows from shapes alone, by the rule in :func:`launch_shape`;
nothing is tuned while serving, so a graph can be captured at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from sglang_mi300a import stream_layout
from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import PLAIN
from sglang_mi300a.moe.kernels import work_split
from sglang_mi300a.moe.rungs import Experts, ExpertSizes
from sglang_mi300a.stream_layout import RECORD_BYTES, ROWS, SCALE_BYTES

STEP_K = 128
"""Values along K that the kernels take at once."""

ITEM_ROWS = 2 * ROWS
"""Weight rows that belong together: gate and up, or even and odd."""

ACTIVATION_FACTOR = 2.0**64
"""What activations carry where the matrix unit keeps bf16 subnormals; else MXFP4 weights do."""

_WORD = 4
_RECORD_WORDS = RECORD_BYTES // _WORD

Format = Literal["stream", "plain", "bf16"]


@dataclass(frozen=True)
class WordStrides:
    """Where a projection's weights lie, in 32-bit words; the kernels' arguments of these names.

    Attributes:
        expert: From one expert to the next.
        item: From one item of 32 rows to the next.
        side: From gate to up, or from an even row to the odd one behind it.
        place: From a row to the next of its side.
        group: From eight values along K to the next eight.
        word: From one of a lane group's four words in 128 values (bf16: in 32) to the next.
        slice: From one slice of K to the next.
        slice_steps: Steps of 128 values in a slice.
        step: From one step to the next in a slice.
        block_words: From 32 values to the next 32 in a step; bf16 only.
        scale_expert, scale_item, scale_side, scale_place, scale_slice, scale_step: The same for the
            words that hold a step's four scales of a row.
    """

    expert: int
    item: int
    side: int
    place: int
    group: int
    word: int
    slice: int
    slice_steps: int
    step: int
    block_words: int = 0
    scale_expert: int = 0
    scale_item: int = 0
    scale_side: int = 0
    scale_place: int = 0
    scale_slice: int = 0
    scale_step: int = 0

    def arguments(self) -> dict[str, int]:
        """Return them as the kernels name them."""
        return {name.upper(): value for name, value in asdict(self).items()}


def stream_strides(projection: str, num_rows: int, k: int) -> WordStrides:
    """Return the strides of ``stream/1``; codes start 64 bytes behind the stream.

    Args:
        projection: ``w13`` or ``w2``.
        num_rows: Weight rows of an expert.
        k: Values along K.
    """
    length = stream_layout.SLICE if projection == "w13" else min(k, stream_layout.SLICE)
    slices, items = k // length, num_rows // ITEM_ROWS
    side = length // STEP_K * _RECORD_WORDS
    item = 2 * side if projection == "w13" else 2 * side * slices
    slice_ = 2 * side * items if projection == "w13" else 2 * side
    expert = 2 * side * slices * items
    return WordStrides(
        expert=expert,
        item=item,
        side=side,
        place=4,
        group=4 * ROWS,
        word=1,
        slice=slice_,
        slice_steps=length // STEP_K,
        step=_RECORD_WORDS,
        scale_expert=expert,
        scale_item=item,
        scale_side=side,
        scale_place=1,
        scale_slice=slice_,
        scale_step=_RECORD_WORDS,
    )


def plain_strides(projection: str, num_rows: int, k: int, weights: str) -> WordStrides:
    """Return the strides of ``plain/1``; arguments as :func:`stream_strides`."""
    row = k // 8 if weights == "mxfp4" else k // 2
    item, side, place = (
        (ROWS * row, num_rows // 2 * row, row)
        if projection == "w13"
        else (ITEM_ROWS * row, row, 2 * row)
    )
    if weights == "bf16":
        return WordStrides(
            expert=num_rows * row,
            item=item,
            side=side,
            place=place,
            group=4,
            word=1,
            slice=0,
            slice_steps=k // STEP_K,
            step=64,
            block_words=16,
        )
    by_scale = 16  # a word of scales stands for sixteen of codes
    return WordStrides(
        expert=num_rows * row,
        item=item,
        side=side,
        place=place,
        group=1,
        word=4,
        slice=0,
        slice_steps=k // STEP_K,
        step=by_scale,
        scale_expert=num_rows * row // by_scale,
        scale_item=item // by_scale,
        scale_side=side // by_scale,
        scale_place=place // by_scale,
        scale_step=1,
    )


# -- what a launch looks like ----------------------------------------------------------------------


@dataclass(frozen=True)
class LaunchShape:
    """How the two products are cut.

    Attributes:
        tile: Rows of a work unit, at most.
        gate_up_rows, down_rows: Weight rows that a program takes at once.
        down_parts: How often, one after the other.
        gate_up_warps, down_warps: Warps of a program.
        gate_up_stages, down_stages: Steps whose loads are under way or in use.
    """

    tile: int
    gate_up_rows: int
    gate_up_warps: int
    gate_up_stages: int
    down_rows: int
    down_parts: int
    down_warps: int
    down_stages: int


_BY_UNITS: tuple[tuple[int, LaunchShape], ...] = (
    (16, LaunchShape(16, 64, 2, 6, 128, 1, 2, 3)),
    (640, LaunchShape(16, 128, 2, 3, 128, 4, 2, 3)),
    (1 << 31, LaunchShape(16, 128, 2, 3, 128, 8, 2, 3)),
)
"""Shapes on NVIDIA GPUs, each with the most work units it is for: the best of some hundred tried on
an NVIDIA H200 at the sizes of TP 4, 1 to 8192 tokens. Tiles of 32 and 64 rows were slower."""

_ON_AMD = LaunchShape(16, 128, 4, 2, 128, 8, 4, 2)
"""No spills on gfx942 with Triton 3.4 and 3.7; its speed there is not known."""


def launch_shape(num_tokens: int, sizes: ExpertSizes, *, on_amd: bool) -> LaunchShape:
    """Return the shape for a number of tokens."""
    if on_amd:
        return fitted(_ON_AMD, sizes)
    tile = _BY_UNITS[0][1].tile
    units = work_split.most_units(num_tokens * sizes.top_k, sizes.num_experts, tile)
    return fitted(next(shape for most, shape in _BY_UNITS if units <= most), sizes)


def fitted(shape: LaunchShape, sizes: ExpertSizes) -> LaunchShape:
    """Return a shape whose runs of weight rows divide the layer's."""
    gate_up_rows = _largest_part(2 * sizes.inner, shape.gate_up_rows)
    down_rows = _largest_part(sizes.hidden, shape.down_rows)
    parts = _largest_part(sizes.hidden // down_rows, shape.down_parts)
    return LaunchShape(
        shape.tile,
        gate_up_rows,
        shape.gate_up_warps,
        shape.gate_up_stages,
        down_rows,
        parts,
        shape.down_warps,
        shape.down_stages,
    )


def _largest_part(whole: int, most: int) -> int:
    """Return the largest power of two up to ``most`` that divides ``whole``."""
    return min(most, whole & -whole)


# -- launches --------------------------------------------------------------------------------------

_BLOCK = 1024
"""Pairs, activations or columns that a program of the three other kernels takes at once."""


@dataclass(frozen=True)
class Stored:
    """How a projection lies in memory: how 128 values are stored, and where a row's words are."""

    format: Format
    strides: WordStrides


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        kernel: Its name in ``triton_kernels``.
        grid: Programs.
        arguments: Names of what it is given, in the kernel's order.
        constants: What it is compiled for.
        options: Of the compilation: warps.
    """

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[str, ...]
    constants: Mapping[str, int | float | bool | str]
    options: Mapping[str, int]


def stored(sizes: ExpertSizes) -> tuple[Stored, Stored]:
    """Return how ``w13`` and ``w2`` lie in memory in a layout."""

    def one(projection: str, num_rows: int, k: int) -> Stored:
        if sizes.weights == "bf16":  # both layouts keep SGLang's own order
            return Stored("bf16", plain_strides(projection, num_rows, k, "bf16"))
        if sizes.layout == PLAIN.id:
            return Stored("plain", plain_strides(projection, num_rows, k, "mxfp4"))
        return Stored("stream", stream_strides(projection, num_rows, k))

    return one("w13", 2 * sizes.inner, sizes.hidden), one("w2", sizes.hidden, sizes.inner)


def launches(
    sizes: ExpertSizes, num_tokens: int, shape: LaunchShape, *, keeps_subnormals: bool
) -> tuple[Launch, ...]:
    """Return the launches of one expert layer, in order.

    Args:
        sizes: Of the layer.
        num_tokens: At least 1.
        shape: From :func:`launch_shape`.
        keeps_subnormals: Whether the matrix unit takes bf16 subnormals for what they are.
    """
    w13, w2 = stored(sizes)
    is_mxfp4 = sizes.weights == "mxfp4"
    factor = ACTIVATION_FACTOR if is_mxfp4 and keeps_subnormals else 1.0
    most_units = work_split.most_units(num_tokens * sizes.top_k, sizes.num_experts, shape.tile)
    experts = {"NUM_EXPERTS": sizes.num_experts, "TOP_K": sizes.top_k, "BLOCK": _BLOCK}
    matrix = {
        "HIDDEN": sizes.hidden,
        "INNER": sizes.inner,
        "LIFT": is_mxfp4 and not keeps_subnormals,
        "TILE": shape.tile,
    }
    copies = -(-num_tokens * sizes.hidden // _BLOCK)
    return (
        Launch(
            "count_pairs",
            (sizes.num_experts + copies,),
            ("topk_ids", "num_tokens", "hidden_states", "counts", "operands"),
            {**experts, "HIDDEN": sizes.hidden, "FACTOR": factor},
            {},
        ),
        Launch(
            "place_pairs",
            (sizes.num_experts,),
            ("topk_ids", "num_tokens", "counts", "work", "row_pairs"),
            {**experts, "EXPERTS_PADDED": _padded(sizes.num_experts), "TILE": shape.tile},
            {},
        ),
        Launch(
            "gate_up",
            (2 * sizes.inner // shape.gate_up_rows, most_units),
            ("w13_codes", "w13_scales", "operands", "work", "row_pairs", "inner"),
            {
                **matrix,
                **w13.strides.arguments(),
                "TOP_K": sizes.top_k,
                "FACTOR": factor,
                "FORMAT": w13.format,
                "ROWS": shape.gate_up_rows,
                "STAGES": shape.gate_up_stages,
            },
            {"num_warps": shape.gate_up_warps},
        ),
        Launch(
            "down",
            (sizes.hidden // (shape.down_rows * shape.down_parts), most_units),
            ("w2_codes", "w2_scales", "inner", "work", "row_pairs", "rows"),
            {
                **matrix,
                **w2.strides.arguments(),
                "FORMAT": w2.format,
                "ROWS": shape.down_rows,
                "PARTS": shape.down_parts,
                "STAGES": shape.down_stages,
            },
            {"num_warps": shape.down_warps},
        ),
        Launch(
            "sum_slots",
            (num_tokens, -(-sizes.hidden // _BLOCK)),
            ("rows", "topk_ids", "topk_weights", "out"),
            {**experts, "HIDDEN": sizes.hidden},
            {},
        ),
    )


def scratch(
    sizes: ExpertSizes, num_tokens: int, tile: int
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of what the launches write besides the result, by name."""
    num_pairs = num_tokens * sizes.top_k
    most_units = work_split.most_units(num_pairs, sizes.num_experts, tile)
    return {
        "counts": ((sizes.num_experts,), torch.int32),
        "work": ((1 + most_units, 4), torch.int32),
        "row_pairs": ((num_pairs,), torch.int32),
        "operands": ((num_tokens, sizes.hidden), torch.bfloat16),
        "inner": ((num_pairs, sizes.inner), torch.bfloat16),
        "rows": ((num_pairs, sizes.hidden), torch.bfloat16),
    }


def _padded(number: int) -> int:
    return 1 << (number - 1).bit_length()


# -- the rung --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prepared:
    """One layer: its sizes, and its weights as int32 tensors by the launches' names."""

    sizes: ExpertSizes
    words: Mapping[str, torch.Tensor]


def keeps_bf16_subnormals(device: torch.device) -> bool:
    """Return whether a device's matrix unit takes a bf16 subnormal for what it is.

    Source: MI200's flushes them (PyTorch's page on numerical accuracy), CDNA3's keeps them
    (arXiv 2511.10909), NVIDIA's keeps them (``benchmarks/triton_moe.py`` compares there). Of other
    AMD devices nothing is known, and nothing is lost but time.
    """
    if device.type != "cuda" or not torch.version.hip:
        return True
    arch: str = torch.cuda.get_device_properties(device).gcnArchName
    return arch.startswith(("gfx94", "gfx95"))


class TritonRung:
    """Expert layers in Triton."""

    name = "triton"

    def can_run(self, device: torch.device, sizes: ExpertSizes) -> str | None:
        """Return None if it can run such layers on this device, else why not."""
        try:
            from sglang_mi300a.moe import triton_kernels
        except ImportError as error:
            return f"no Triton ({error})"
        if not triton_kernels.is_interpreted():
            if device.type != "cuda":
                return f"device {device.type}"
            capability = torch.cuda.get_device_capability(device)
            if not torch.version.hip and capability < (8, 0):
                return f"compute capability {capability}; bf16 products begin with (8, 0)"
        if sizes.layout not in (PLAIN.id, stream_layout.Stream.id):
            return f"layout {sizes.layout}"
        if sizes.activations != torch.bfloat16:
            return f"activations {sizes.activations}"
        return _without_kernel(sizes)

    def prepare(self, experts: Experts) -> Prepared:
        """Return where the weights lie; nothing is moved."""
        words: dict[str, torch.Tensor] = {}
        for projection in stream_layout.PROJECTIONS:
            words |= words_of(experts, projection)
        return Prepared(experts.sizes, words)

    def apply(
        self,
        prepared: Prepared,
        hidden: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Return each token's weighted sum over its experts.

        Args:
            prepared: From :meth:`prepare`.
            hidden: bf16 ``[M, hidden]``, contiguous; M may be 0.
            topk_ids: int32 ``[M, top_k]``, local ids; what is no local expert contributes nothing.
            topk_weights: float32 ``[M, top_k]``.

        Returns:
            bf16 ``[M, hidden]``.
        """
        on_amd = torch.version.hip is not None
        shape = launch_shape(hidden.shape[0], prepared.sizes, on_amd=on_amd)
        return run(prepared, hidden, topk_ids, topk_weights, shape)


def run(
    prepared: Prepared,
    hidden: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    shape: LaunchShape,
) -> torch.Tensor:
    """Return what :meth:`TritonRung.apply` does, with launches of a given shape."""
    num_tokens, device = hidden.shape[0], hidden.device
    out = torch.empty_like(hidden)
    if num_tokens == 0:
        return out
    own = {
        name: torch.empty(size, dtype=dtype, device=device)
        for name, (size, dtype) in scratch(prepared.sizes, num_tokens, shape.tile).items()
    }
    given = {
        **prepared.words,
        **own,
        "hidden_states": hidden,
        "topk_ids": topk_ids,
        "topk_weights": topk_weights,
        "out": out,
    }
    keeps_subnormals = keeps_bf16_subnormals(device)
    for one in launches(prepared.sizes, num_tokens, shape, keeps_subnormals=keeps_subnormals):
        start(one, num_tokens, given)
    return out


def start(launch: Launch, num_tokens: int, given: Mapping[str, torch.Tensor]) -> None:
    """Start one launch.

    Args:
        launch: From :func:`launches`.
        num_tokens: Of the batch.
        given: Tensors by the names that launches use.

    Raises:
        UserError: Triton cannot compile it for this device.
    """
    from triton.errors import TritonError

    from sglang_mi300a.moe import triton_kernels

    kernel = getattr(triton_kernels, launch.kernel)
    arguments = [num_tokens if n == "num_tokens" else given[n] for n in launch.arguments]
    try:
        kernel[launch.grid](*arguments, **launch.constants, **launch.options)
    except TritonError as error:
        raise UserError(
            f"Triton kernel {launch.kernel}",
            found=str(error),
            allowed="a device and a Triton that can compile it",
            do="report both with this message; --allow-rung torch serves, slowly",
        ) from error


def _without_kernel(sizes: ExpertSizes) -> str | None:
    """Return which size the kernels do not take, or None."""
    is_stream = sizes.layout != PLAIN.id and sizes.weights == "mxfp4"
    hidden_step = stream_layout.SLICE if is_stream else STEP_K
    inner_ends = is_stream and sizes.inner > stream_layout.SLICE
    inner_step = stream_layout.SLICE if inner_ends else STEP_K
    if sizes.hidden % hidden_step == 0 and sizes.inner % inner_step == 0:
        return None
    return (
        f"hidden size {sizes.hidden}, {sizes.inner} neurons of an expert; multiples of "
        f"{hidden_step} and {inner_step} are taken"
    )


def words_of(experts: Experts, projection: str) -> dict[str, torch.Tensor]:
    """Return a projection's codes and scales as int32, from the first word of each on.

    Args:
        experts: The layer.
        projection: ``w13`` or ``w2``.
    """
    stream = experts.tensors.get(stream_layout.stream_name(projection))
    if stream is not None:
        scales = stream.view(torch.int32)
        codes = scales[:, SCALE_BYTES // _WORD :]
    else:
        codes = experts.tensors[f"{projection}_weight"].view(torch.int32)
        scale = experts.tensors.get(f"{projection}_weight_scale")
        scales = codes if scale is None else scale.view(torch.int32)
    return {f"{projection}_codes": codes, f"{projection}_scales": scales}
