"""Which bytes of a checkpoint make which parameter of one rank: the one cutting rule.

``shard-weights`` executes the plan into files; the loader executes the same plan straight from a
Hugging Face checkpoint. Parameter names and shapes are those of SGLang's stock
``Qwen3_5MoeForConditionalGeneration`` (target) and ``Qwen3_5ForCausalLMMTP`` (draft).

Every tensor is looked at as a matrix: its last dimension is a row (``[columns]``), all others
together count rows; a vector has one column. Then every cut in this model is a block of rows, or of
columns, and lands in whole rows of the parameter:

======================  =========================================================================
parameter               rank r of tp takes
======================  =========================================================================
embedding, lm_head      rows r/tp of the vocabulary padded to 64; padding is zero
qkv_proj                its query heads (each ``head_dim`` rows, then as many gate rows), then its
                        key heads, then its value heads; ranks beyond the KV heads share them
in_proj_qkvz            rows r/tp of each of q, k, v (all in ``in_proj_qkv``) and of z
in_proj_ba              rows r/tp of b, then of a
conv1d                  channels r/tp of each of q, k, v
A_log, dt_bias          r/tp
gate_up_proj            rows r/tp of gate, then of up (shared expert)
o_proj, out_proj,       columns r/tp
down_proj
experts.w13_*           per expert rows of gate, then of up; experts.w2_* per expert columns;
                        with ep, r // (tp/ep) picks the experts and r % (tp/ep) the rows or columns
norms, router,          everything
shared_expert_gate, fc
======================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from typing import NamedTuple, NoReturn

from sglang_mi300a.artifact_manifest import DTYPE_BYTES, Heads, Part, size_bytes
from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import ExpertTensor
from sglang_mi300a.mxfp4 import BLOCK
from sglang_mi300a.weights.model_sizes import ModelSizes, VisionSizes

VOCABULARY_PADDING = 64
"""SGLang pads the vocabulary to a multiple of this before it splits it."""

FLOATS = ("BF16", "F16", "F32")
_SCALE_DTYPES = ("U8", "F8_E8M0")

ALWAYS_IGNORED = ("*.rotary_emb.inv_freq",)
"""Tensors that some exporters store and no model reads."""


class Source(NamedTuple):
    """Type and shape of a checkpoint's tensor."""

    dtype: str
    shape: tuple[int, ...]


class Piece(NamedTuple):
    """A block of a source tensor and the parameter row where it lands.

    Rows and columns are half-open ranges of the source as a matrix. The block fills whole rows of
    the parameter, from ``destination_row`` on.
    """

    source: str
    row_start: int
    row_stop: int
    column_start: int
    column_stop: int
    destination_row: int


@dataclass(frozen=True)
class Parameter:
    """One parameter of one rank.

    Attributes:
        name: Name in the model's ``named_parameters()``.
        shape: Shape on this rank.
        dtype: Type of its sources; the model may hold it in another float type.
        pieces: Where its bytes come from, by ascending destination; rows in no piece are zero.
        group: Parameters that are made together share this name: an expert projection's weight
            and its scales. All others are their own group.
        num_local_experts: Experts stacked in the first dimension; 0 for other parameters.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...] = field(repr=False)
    group: str
    num_local_experts: int = 0

    @property
    def num_columns(self) -> int:
        """Columns of the matrix view."""
        return num_columns(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the matrix view."""
        return self.num_columns * DTYPE_BYTES[self.dtype]

    @property
    def size(self) -> int:
        """Bytes."""
        return size_bytes(self.dtype, self.shape)

    @property
    def is_filled(self) -> bool:
        """Whether the pieces leave no row out."""
        filled = sum(piece.row_stop - piece.row_start for piece in self.pieces)
        return filled == num_rows(self.shape)

    @property
    def expert_tensor(self) -> ExpertTensor:
        """One expert's share, for a stack of experts."""
        return ExpertTensor(self.name.rpartition(".")[2], self.dtype, self.shape[1:])


@dataclass(frozen=True)
class Placement:
    """Which rank of how many.

    Attributes:
        tp: Tensor-parallel ranks.
        ep: Expert-parallel ranks among them.
        rank: Tensor-parallel rank.
        heads: ``"replicated"`` as on a GPU: ranks beyond the KV heads share them. ``"padded"`` as
            SGLang's CPU engine does: zero heads are added until they divide.
    """

    tp: int
    ep: int
    rank: int
    heads: Heads = "replicated"

    @property
    def moe_tp(self) -> int:
        """Ranks that share one expert."""
        return self.tp // self.ep

    @property
    def moe_tp_rank(self) -> int:
        """This rank among those that share its experts."""
        return self.rank % self.moe_tp

    @property
    def ep_rank(self) -> int:
        """Which group of experts this rank holds."""
        return self.rank // self.moe_tp


@dataclass(frozen=True)
class RankPlan:
    """All parameters of one model on one rank.

    Attributes:
        part: ``"target"`` or ``"draft"``.
        placement: The rank.
        parameters: In the order of files.
        known: Checkpoint tensors that belong to this model, on whichever rank.
    """

    part: Part
    placement: Placement
    parameters: tuple[Parameter, ...]
    known: frozenset[str] = field(repr=False)


def num_columns(shape: tuple[int, ...]) -> int:
    """Return the columns of a tensor seen as a matrix: 1 for a vector or a scalar."""
    return shape[-1] if len(shape) > 1 else 1


def num_rows(shape: tuple[int, ...]) -> int:
    """Return the rows of a tensor seen as a matrix."""
    return prod(shape[:-1]) if len(shape) > 1 else prod(shape)


def check_placement(sizes: ModelSizes, placement: Placement, *, text_only: bool) -> None:
    """Check that every cut size divides.

    Raises:
        UserError: One does not; the error names all of them.
    """
    tp, ep = placement.tp, placement.ep
    if tp < 1 or ep < 1 or tp % ep or not 0 <= placement.rank < tp:
        raise UserError(
            "--tp, --ep",
            found=f"TP {tp}, EP {ep}, rank {placement.rank}",
            allowed="positive sizes, EP a divisor of TP, ranks below TP",
            do="choose for instance --tp 4",
        )
    kv_heads = sizes.num_key_value_heads
    wanted = [
        ("linear_num_key_heads", sizes.linear_num_key_heads, tp),
        ("linear_num_value_heads", sizes.linear_num_value_heads, tp),
        ("shared_expert_intermediate_size", sizes.shared_expert_intermediate_size, tp),
        ("num_experts", sizes.num_experts, ep),
        ("moe_intermediate_size", sizes.moe_intermediate_size, placement.moe_tp),
        ("the padded vocabulary", padded_vocabulary(sizes.vocab_size), tp),
    ]
    if placement.heads == "replicated":
        wanted.append(("num_attention_heads", sizes.num_attention_heads, tp))
        bigger, smaller = max(kv_heads, tp), min(kv_heads, tp)
        wanted.append(("num_key_value_heads and TP", bigger, smaller))
    elif kv_heads % tp and tp % kv_heads:
        wanted.append(("num_key_value_heads", kv_heads, tp))
    if not text_only and sizes.vision is not None:
        wanted.append(("vision_config.num_heads", sizes.vision.num_heads, tp))
        wanted.append(("vision_config.intermediate_size", sizes.vision.intermediate_size, tp))
    bad = [f"{name} = {size} over {parts}" for name, size, parts in wanted if size % parts]
    if bad:
        raise UserError(
            f"--tp {tp} --ep {ep}",
            found=f"sizes that do not divide: {', '.join(bad)}",
            allowed="ranks that divide every size",
            do="choose fewer ranks, for instance --tp 4",
        )


def padded_vocabulary(vocab_size: int) -> int:
    """Return the vocabulary padded as SGLang pads it."""
    return -(-vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING


def make(
    sizes: ModelSizes,
    sources: Mapping[str, Source],
    placement: Placement,
    part: Part,
    *,
    text_only: bool,
    where: str,
) -> RankPlan:
    """Return the plan of one model on one rank.

    Args:
        sizes: The model's sizes.
        sources: Every tensor of the checkpoint.
        placement: The rank.
        part: Which model.
        text_only: Leave the visual tower out.
        where: The checkpoint, for errors.

    Raises:
        UserError: A tensor is missing, or has another type or shape than the model needs.
    """
    check_placement(sizes, placement, text_only=text_only)
    builder = _Builder(sizes, sources, placement, where)
    if part == "draft":
        return builder.draft()
    return builder.target(text_only=text_only)


def lent(sizes: ModelSizes, placement: Placement, part: Part) -> dict[str, tuple[int, ...]]:
    """Return name and shape of parameters that no checkpoint holds.

    They are the draft's embedding and head, in whose place SGLang puts the target's once both
    models are loaded.
    """
    if part == "target":
        return {}
    shape = (padded_vocabulary(sizes.vocab_size) // placement.tp, sizes.hidden_size)
    names = ["model.embed_tokens.weight", *(() if sizes.tied_draft else ("lm_head.weight",))]
    return dict.fromkeys(names, shape)


def has_draft(sources: Mapping[str, Source]) -> bool:
    """Return whether a checkpoint holds an MTP layer."""
    return any(name.startswith("mtp.") for name in sources)


def unused(
    sources: Mapping[str, Source],
    plans: Iterable[RankPlan],
    *,
    text_only: bool,
    ignore: Iterable[str] = (),
) -> list[str]:
    """Return tensors of the planned models that nothing uses and that were not left out on purpose.

    Tensors without elements are not counted: there is nothing in them to lose.

    Args:
        sources: Every tensor of the checkpoint.
        plans: A plan of each model that was planned; any rank's.
        text_only: The visual tower was left out.
        ignore: Patterns of names that may stay unused.
    """
    plans = list(plans)
    known = frozenset[str]().union(*(plan.known for plan in plans))
    parts = {plan.part for plan in plans}
    patterns = (*ALWAYS_IGNORED, *ignore)
    return sorted(
        name
        for name, source in sources.items()
        if name not in known
        and ("draft" if name.startswith("mtp.") else "target") in parts
        and prod(source.shape) > 0
        and not (text_only and name.startswith(("model.visual.", "visual.")))
        and not any(fnmatchcase(name, pattern) for pattern in patterns)
    )


class _Builder:
    def __init__(
        self,
        sizes: ModelSizes,
        sources: Mapping[str, Source],
        placement: Placement,
        where: str,
    ) -> None:
        self.sizes = sizes
        self.sources = sources
        self.at = placement
        self.where = where
        self.parameters: list[Parameter] = []
        self.known: set[str] = set()

    # -- the two models ------------------------------------------------------------------------

    def target(self, *, text_only: bool) -> RankPlan:
        sizes = self.sizes
        prefix = self._language_prefix()
        self._vocabulary("model.embed_tokens.weight", f"{prefix}embed_tokens.weight")
        for i in range(sizes.num_hidden_layers):
            ours, theirs = f"model.layers.{i}.", f"{prefix}layers.{i}."
            if sizes.is_full_attention(i):
                self._attention(ours, f"{theirs}self_attn.")
            else:
                self._delta_net(f"{ours}linear_attn.", f"{theirs}linear_attn.")
            self._rest_of_layer(ours, theirs)
        self._whole("model.norm.weight", f"{prefix}norm.weight", (sizes.hidden_size,))
        if not sizes.tied_target:
            self._vocabulary("lm_head.weight", "lm_head.weight")
        if not text_only and sizes.vision is not None:
            self._visual(sizes.vision)
        return RankPlan("target", self.at, tuple(self.parameters), frozenset(self.known))

    def draft(self) -> RankPlan:
        hidden = self.sizes.hidden_size
        self._whole("fc.weight", "mtp.fc.weight", (hidden, 2 * hidden))
        for name in ("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight"):
            self._whole(name, f"mtp.{name}", (hidden,))
        self._attention("model.layers.0.", "mtp.layers.0.self_attn.")
        self._rest_of_layer("model.layers.0.", "mtp.layers.0.")
        self._whole("model.norm.weight", "mtp.norm.weight", (hidden,))
        return RankPlan("draft", self.at, tuple(self.parameters), frozenset(self.known))

    def _language_prefix(self) -> str:
        probe = "layers.0.input_layernorm.weight"
        found = [p for p in ("model.language_model.", "model.") if f"{p}{probe}" in self.sources]
        if len(found) == 1:
            return found[0]
        candidates = sorted(name for name in self.sources if name.endswith(probe))
        raise UserError(
            self.where,
            found=f"{len(found)} usable prefixes; layer 0 is named "
            f"{', '.join(candidates[:2]) or 'nowhere'}",
            allowed=f"model.language_model.{probe} or model.{probe}",
            do="rename the tensors: an exporter nested the model once too often"
            if any("language_model.language_model." in name for name in candidates)
            else "give the directory of a complete Qwen3.5-MoE checkpoint",
        )

    # -- layers --------------------------------------------------------------------------------

    def _attention(self, ours: str, theirs: str) -> None:
        sizes, tp, rank = self.sizes, self.at.tp, self.at.rank
        query_heads, kv_heads = built_heads(sizes, self.at)
        query_share = query_heads // tp * sizes.query_rows_per_head
        replicas = max(1, tp // kv_heads)
        kv_share = max(1, kv_heads // tp) * sizes.head_dim
        queries = sizes.num_attention_heads * sizes.query_rows_per_head
        keys = sizes.num_key_value_heads * sizes.head_dim
        hidden = sizes.hidden_size
        kv_start = rank // replicas * kv_share
        shares = [
            (f"{theirs}q_proj.weight", queries, rank * query_share, query_share),
            (f"{theirs}k_proj.weight", keys, kv_start, kv_share),
            (f"{theirs}v_proj.weight", keys, kv_start, kv_share),
        ]
        self._rows(f"{ours}qkv_proj.weight", shares, (hidden,))
        width = query_heads // tp * sizes.head_dim
        real = sizes.num_attention_heads * sizes.head_dim
        self._columns(f"{ours}o_proj.weight", f"{theirs}o_proj.weight", hidden, real, width)
        for name in ("q_norm.weight", "k_norm.weight"):
            self._whole(f"{ours}{name}", f"{theirs}{name}", (sizes.head_dim,))

    def _delta_net(self, ours: str, theirs: str) -> None:
        sizes, hidden = self.sizes, self.sizes.hidden_size
        keys = sizes.linear_num_key_heads * sizes.linear_key_head_dim
        values = sizes.linear_num_value_heads * sizes.linear_value_head_dim
        heads, taps = sizes.linear_num_value_heads, sizes.linear_conv_kernel_dim
        self._split(f"{ours}A_log", f"{theirs}A_log", heads, ())
        self._split(f"{ours}dt_bias", f"{theirs}dt_bias", heads, ())
        conv = [(f"{theirs}conv1d.weight", (keys, keys, values))]
        self._fused(f"{ours}conv1d.weight", conv, (1, taps))
        self._fused(
            f"{ours}in_proj_qkvz.weight",
            [
                (f"{theirs}in_proj_qkv.weight", (keys, keys, values)),
                (f"{theirs}in_proj_z.weight", (values,)),
            ],
            (hidden,),
        )
        self._fused(
            f"{ours}in_proj_ba.weight",
            [
                (f"{theirs}in_proj_b.weight", (heads,)),
                (f"{theirs}in_proj_a.weight", (heads,)),
            ],
            (hidden,),
        )
        self._whole(f"{ours}norm.weight", f"{theirs}norm.weight", (sizes.linear_value_head_dim,))
        self._columns(
            f"{ours}out_proj.weight",
            f"{theirs}out_proj.weight",
            hidden,
            values,
            values // self.at.tp,
        )

    def _rest_of_layer(self, ours: str, theirs: str) -> None:
        sizes, hidden = self.sizes, self.sizes.hidden_size
        shared = sizes.shared_expert_intermediate_size
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            self._whole(f"{ours}{name}", f"{theirs}{name}", (hidden,))
        router, expert = "mlp.gate.weight", "mlp.shared_expert."
        self._whole(f"{ours}{router}", f"{theirs}{router}", (sizes.num_experts, hidden))
        self._fused(
            f"{ours}{expert}gate_up_proj.weight",
            [
                (f"{theirs}{expert}gate_proj.weight", (shared,)),
                (f"{theirs}{expert}up_proj.weight", (shared,)),
            ],
            (hidden,),
        )
        self._columns(
            f"{ours}{expert}down_proj.weight",
            f"{theirs}{expert}down_proj.weight",
            hidden,
            shared,
            shared // self.at.tp,
        )
        gate = "mlp.shared_expert_gate.weight"
        self._whole(f"{ours}{gate}", f"{theirs}{gate}", (1, hidden))
        self._experts(f"{ours}mlp.experts.", f"{theirs}mlp.experts.")

    def _experts(self, ours: str, theirs: str) -> None:
        fused, single = f"{theirs}gate_up_proj", f"{theirs}0.gate_proj.weight"
        if fused in self.sources and single in self.sources:
            self._refuse(fused, f"beside {single}", "experts stored one way")
        if fused in self.sources:
            self._stacked_experts(ours, theirs)
        elif single not in self.sources or self.sources[single].dtype in FLOATS:
            self._single_experts(ours, theirs, 1, FLOATS)
        else:
            self._check_mxfp4(single)
            self._single_experts(ours, theirs, 2, ("U8",))

    def _check_mxfp4(self, name: str) -> None:
        if self.sources[name].dtype != "U8":
            self._refuse(name, self.sources[name].dtype, f"U8 (MXFP4) or {', '.join(FLOATS)}")
        share = self.sizes.moe_intermediate_size // self.at.moe_tp
        if share % BLOCK or self.sizes.hidden_size % BLOCK:
            raise UserError(
                f"--tp {self.at.tp} --ep {self.at.ep}",
                found=f"{share} of {self.sizes.moe_intermediate_size} expert columns a rank",
                allowed=f"a multiple of {BLOCK}: an MXFP4 scale block is not cut",
                do="choose fewer ranks, or more expert-parallel ones",
            )

    def _single_experts(
        self, ours: str, theirs: str, per_byte: int, dtypes: tuple[str, ...]
    ) -> None:
        """Add both projections from one tensor per expert and projection."""
        hidden, inter = self.sizes.hidden_size, self.sizes.moe_intermediate_size
        share = inter // self.at.moe_tp
        start = self.at.moe_tp_rank * share
        kinds = [("weight", per_byte, dtypes)]
        if per_byte > 1:
            kinds.append(("weight_scale", BLOCK, _SCALE_DTYPES))
        for kind, packed, allowed in kinds:
            pieces: list[Piece] = []
            columns = hidden // packed
            for e in range(self.sizes.num_experts):
                slot = self._slot(e)
                for half, projection in enumerate(("gate_proj", "up_proj")):
                    name = f"{theirs}{e}.{projection}.{kind}"
                    self._need(name, (inter, columns), allowed)
                    if slot is not None:
                        row = (2 * slot + half) * share
                        pieces.append(Piece(name, start, start + share, 0, columns, row))
            self._add_stack(f"{ours}w13_{kind}", (2 * share, columns), pieces, f"{ours}w13")
        for kind, packed, allowed in kinds:
            pieces = []
            first, last = start // packed, (start + share) // packed
            for e in range(self.sizes.num_experts):
                slot = self._slot(e)
                name = f"{theirs}{e}.down_proj.{kind}"
                self._need(name, (hidden, inter // packed), allowed)
                if slot is not None:
                    pieces.append(Piece(name, 0, hidden, first, last, slot * hidden))
            self._add_stack(f"{ours}w2_{kind}", (hidden, last - first), pieces, f"{ours}w2")

    def _stacked_experts(self, ours: str, theirs: str) -> None:
        """Add both projections from one tensor that holds all experts."""
        hidden, inter, num = (
            self.sizes.hidden_size,
            self.sizes.moe_intermediate_size,
            self.sizes.num_experts,
        )
        share = inter // self.at.moe_tp
        start = self.at.moe_tp_rank * share
        gate_up, down = f"{theirs}gate_up_proj", f"{theirs}down_proj"
        self._need(gate_up, (num, 2 * inter, hidden), FLOATS)
        self._need(down, (num, hidden, inter), FLOATS)
        local = [(e, slot) for e in range(num) if (slot := self._slot(e)) is not None]
        pieces = []
        for e, slot in local:
            for half in range(2):
                row = (2 * e + half) * inter + start
                at = (2 * slot + half) * share
                pieces.append(Piece(gate_up, row, row + share, 0, hidden, at))
        self._add_stack(f"{ours}w13_weight", (2 * share, hidden), pieces, f"{ours}w13")
        pieces = [
            Piece(down, e * hidden, (e + 1) * hidden, start, start + share, slot * hidden)
            for e, slot in local
        ]
        self._add_stack(f"{ours}w2_weight", (hidden, share), pieces, f"{ours}w2")

    def _slot(self, expert: int) -> int | None:
        """Return an expert's place on this rank, or None if another rank holds it."""
        num = self.sizes.num_experts // self.at.ep
        return expert % num if expert // num == self.at.ep_rank else None

    def _add_stack(
        self, name: str, shape: tuple[int, int], pieces: list[Piece], group: str
    ) -> None:
        num = self.sizes.num_experts // self.at.ep
        dtype = self._common_dtype(name, pieces)
        dtype = "U8" if dtype == "F8_E8M0" else dtype
        self.parameters.append(Parameter(name, (num, *shape), dtype, tuple(pieces), group, num))

    # -- the visual tower ----------------------------------------------------------------------

    def _visual(self, vision: VisionSizes) -> None:
        theirs = "model.visual."
        if not any(name.startswith(theirs) for name in self.sources):
            theirs = "visual."
        ours, width = "visual.", vision.hidden_size
        side = vision.patch_size
        patch = (width, vision.in_channels, vision.temporal_patch_size, side, side)
        for name, shape in (("weight", patch), ("bias", (width,))):
            self._whole(f"{ours}patch_embed.proj.{name}", f"{theirs}patch_embed.proj.{name}", shape)
        self._vocabulary(
            f"{ours}pos_embed.weight",
            f"{theirs}pos_embed.weight",
            vision.num_position_embeddings,
            width,
        )
        for i in range(vision.depth):
            self._visual_block(f"{ours}blocks.{i}.", f"{theirs}blocks.{i}.", vision)
        merged = width * vision.spatial_merge_size**2
        self._merger(f"{ours}merger.", f"{theirs}merger.", width, merged, vision.out_hidden_size)
        for i in range(vision.num_deepstack):
            name = f"deepstack_merger_list.{i}."
            self._merger(f"{ours}{name}", f"{theirs}{name}", merged, merged, vision.out_hidden_size)

    def _visual_block(self, ours: str, theirs: str, vision: VisionSizes) -> None:
        width, inter, tp = vision.hidden_size, vision.intermediate_size, self.at.tp
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            self._whole(f"{ours}{name}", f"{theirs}{name}", (width,))
        qkv = [(f"{theirs}attn.qkv.weight", (width, width, width))]
        self._fused(f"{ours}attn.qkv_proj.weight", qkv, (width,))
        qkv = [(f"{theirs}attn.qkv.bias", (width, width, width))]
        self._fused(f"{ours}attn.qkv_proj.bias", qkv, ())
        name = "attn.proj.weight"
        self._columns(f"{ours}{name}", f"{theirs}{name}", width, width, width // tp)
        self._whole(f"{ours}attn.proj.bias", f"{theirs}attn.proj.bias", (width,))
        self._two_layers(f"{ours}mlp.", f"{theirs}mlp.", width, inter, width)

    def _merger(self, ours: str, theirs: str, norm: int, width: int, out: int) -> None:
        for name in ("norm.weight", "norm.bias"):
            self._whole(f"{ours}{name}", f"{theirs}{name}", (norm,))
        self._two_layers(ours, theirs, width, width, out)

    def _two_layers(self, ours: str, theirs: str, width: int, inter: int, out: int) -> None:
        self._split(f"{ours}linear_fc1.weight", f"{theirs}linear_fc1.weight", inter, (width,))
        self._split(f"{ours}linear_fc1.bias", f"{theirs}linear_fc1.bias", inter, ())
        name = "linear_fc2.weight"
        self._columns(f"{ours}{name}", f"{theirs}{name}", out, inter, inter // self.at.tp)
        self._whole(f"{ours}linear_fc2.bias", f"{theirs}linear_fc2.bias", (out,))

    # -- cuts ----------------------------------------------------------------------------------

    def _whole(self, name: str, source: str, shape: tuple[int, ...]) -> None:
        self._need(source, shape, FLOATS)
        rows, columns = num_rows(shape), num_columns(shape)
        self._add(name, shape, [Piece(source, 0, rows, 0, columns, 0)])

    def _split(self, name: str, source: str, rows: int, rest: tuple[int, ...]) -> None:
        self._fused(name, [(source, (rows,))], rest)

    def _fused(
        self, name: str, parts: Sequence[tuple[str, tuple[int, ...]]], rest: tuple[int, ...]
    ) -> None:
        """Add a parameter that takes its share of each part of each source, one after another."""
        tp, rank = self.at.tp, self.at.rank
        pieces: list[Piece] = []
        columns = rest[-1] if rest else 1
        row = 0
        for source, sizes in parts:
            self._need(source, (sum(sizes), *rest), FLOATS)
            before = 0
            for size in sizes:
                start = before + size // tp * rank
                pieces.append(Piece(source, start, start + size // tp, 0, columns, row))
                row += size // tp
                before += size
        self._add(name, (row, *rest), pieces)

    def _rows(
        self, name: str, shares: list[tuple[str, int, int, int]], rest: tuple[int, ...]
    ) -> None:
        """Add a parameter of row blocks ``(source, its rows, start, count)``, cut where it ends."""
        pieces: list[Piece] = []
        row = 0
        for source, total, start, count in shares:
            self._need(source, (total, *rest), FLOATS)
            stop = min(start + count, total)
            if start < stop:
                pieces.append(Piece(source, start, stop, 0, rest[-1], row))
            row += count
        self._add(name, (row, *rest), pieces, dtype=self.sources[shares[0][0]].dtype)

    def _columns(self, name: str, source: str, rows: int, total: int, width: int) -> None:
        self._need(source, (rows, total), FLOATS)
        start = self.at.rank * width
        pieces = []
        if start + width <= total:
            pieces.append(Piece(source, 0, rows, start, start + width, 0))
        elif start < total:
            self._refuse(source, f"{total} columns", f"a multiple of {width}")
        self._add(name, (rows, width), pieces, dtype=self.sources[source].dtype)

    def _vocabulary(
        self, name: str, source: str, entries: int | None = None, width: int | None = None
    ) -> None:
        entries = entries or self.sizes.vocab_size
        width = width or self.sizes.hidden_size
        share = padded_vocabulary(entries) // self.at.tp
        self._rows(name, [(source, entries, self.at.rank * share, share)], (width,))

    # -- bookkeeping ---------------------------------------------------------------------------

    def _add(self, name: str, shape: tuple[int, ...], pieces: list[Piece], dtype: str = "") -> None:
        dtype = dtype or self._common_dtype(name, pieces)
        self.parameters.append(Parameter(name, shape, dtype, tuple(pieces), name))

    def _common_dtype(self, name: str, pieces: list[Piece]) -> str:
        dtypes = {self.sources[piece.source].dtype: piece.source for piece in pieces}
        if len(dtypes) > 1:
            shown = ", ".join(f"{source} {dtype}" for dtype, source in dtypes.items())
            self._refuse(name, f"sources of several types: {shown}", "one type")
        return next(iter(dtypes))

    def _need(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
        self.known.add(name)
        source = self.sources.get(name)
        if source is None:
            raise UserError(
                self.where,
                found=f"no tensor {name}",
                allowed=f"{' or '.join(dtypes)} {list(shape)}",
                do="fetch the checkpoint again; without it a parameter would keep random values",
            )
        if source.shape != shape:
            self._refuse(name, f"shape {list(source.shape)}", f"{list(shape)} by config.json")
        if source.dtype not in dtypes:
            self._refuse(name, f"type {source.dtype}", " or ".join(dtypes))

    def _refuse(self, name: str, found: str, allowed: str) -> NoReturn:
        raise UserError(
            f"{self.where}: {name}",
            found=found,
            allowed=allowed,
            do="use a checkpoint whose config.json and tensors belong together",
        )


def built_heads(sizes: ModelSizes, placement: Placement) -> tuple[int, int]:
    """Return query and KV heads as SGLang builds them over all ranks.

    They are the model's own, except where the CPU engine adds zero heads until they divide.
    """
    queries, keys = sizes.num_attention_heads, sizes.num_key_value_heads
    divide = queries % placement.tp == 0 and keys % placement.tp == 0
    if placement.heads == "replicated" or divide:
        return queries, keys
    padded = -(-keys // placement.tp) * placement.tp
    return padded * (queries // keys), padded
