"""The expert layer in Triton: five kernels for any GPU that Triton compiles for.

    count_pairs -> place_pairs -> gate_up -> down -> sum_slots

    rows[p] = W2[e] @ inner,   inner = bf16( silu(W1[e] @ x[t]) * (W3[e] @ x[t]) )
    out[t]  = bf16( sum_j  w[t, j] * bf16(rows[t * k + j]) ),      e = expert of pair p = t * k + j

Reference   reference.py, expert_layer
Test        tests/moe/triton
Called by   triton_rung.py, which chooses shapes and owns the buffers
Work        units as in kernels/work_split.py: up to TILE sorted pairs of one expert. A program
            takes a unit and a run of weight rows. Grids depend on shapes alone, so a graph can hold
            the launches; programs without work return at once, and stand last in the grid, which
            spreads the others evenly.
Order       every sum has one order and no result is added atomically: the same bits whatever
            runs when. A row does not depend on the rows beside it.
Evidence    E0 in Triton's interpreter; E2 on an NVIDIA GPU (benchmarks/triton_moe.py).

Weights are read as 32-bit words through strides, so one kernel reads ``stream/1`` and ``plain/1``.
A weight row has an item (32 rows), a side (gate or up; even or odd) and a place among 16, as
``stream_layout.py`` says; its number inside a program is (item, place, side). Along K everything
goes by steps of 128, four blocks of 32. Inside a block the order along K is free as long as
weights and activations share it: ``value_at`` is the one in which the words of a thread are its
operands of NVIDIA's matrix instruction, and ``count_pairs`` copies the activations in that order.

MXFP4 codes become bf16 as in ``csrc/moe/weight_formats.h``: bits are moved to where bf16 has its
sign, lowest exponent bits and highest mantissa bit, which is the value times 2^-126. Activations
carry 2^64, or weights do where the matrix unit drops subnormals; the scale, as the exponent s + 62
of a float32, brings the rest after the 32 products of a block are summed. Exact for scale bytes
0 .. 192.
"""

from __future__ import annotations

import triton
import triton.language as tl

WORK_WORDS = tl.constexpr(4)
"""int32 words of a unit, and of the header: (number of units, number of rows, 0, 0)."""

_FIELD = tl.constexpr(0x81C081C0)
_FIRST_OWNS = tl.constexpr(0x06030603)
_SECOND_OWNS = tl.constexpr(0xF9FCF9FC)
_EXPONENT_BIAS = tl.constexpr(62)
_LIFT = tl.constexpr(2.0**64)


def is_interpreted() -> bool:
    """Return whether Triton runs these kernels in its interpreter, on the CPU."""
    return not isinstance(gate_up, triton.JITFunction)


# -- pairs ---------------------------------------------------------------------------------------


@triton.jit
def value_at(place):
    """Return which of a block's 32 values stands at a place: bits (4 3 2 1 0) <- (3 2 4 1 0)."""
    return (place & 3) | ((place >> 4) & 1) << 2 | ((place >> 2) & 3) << 3


@triton.jit
def place_of(value):
    """Return the place of a block's value: the inverse of :func:`value_at`."""
    return (value & 3) | ((value >> 2) & 1) << 4 | ((value >> 3) & 3) << 2


@triton.jit(do_not_specialize=["num_tokens"])
def count_pairs(
    topk_ids,  # int32 [num_tokens, TOP_K]: what is not in 0 .. NUM_EXPERTS - 1 is no expert here
    num_tokens,
    activations,  # bf16 [num_tokens, HIDDEN]
    counts,  # out: int32 [NUM_EXPERTS]
    operands,  # out: bf16 [num_tokens, HIDDEN], times FACTOR, in the order of value_at
    TOP_K: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    FACTOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count each expert's pairs (program e), and copy BLOCK activations (the programs behind)."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    if program < NUM_EXPERTS:
        num_pairs = num_tokens * TOP_K
        total = 0
        for start in range(0, num_pairs, BLOCK):
            pairs = start + lanes
            experts = tl.load(topk_ids + pairs, mask=pairs < num_pairs, other=-1)
            total += tl.sum((experts == program).to(tl.int32))
        tl.store(counts + program, total)
    else:
        places = (program - NUM_EXPERTS).to(tl.int64) * BLOCK + lanes
        exists = places < num_tokens.to(tl.int64) * HIDDEN
        values = tl.load(activations + (places & -32) + value_at(places & 31), mask=exists)
        scaled = (values.to(tl.float32) * FACTOR).to(tl.bfloat16)
        tl.store(operands + places, scaled, mask=exists)


@triton.jit(do_not_specialize=["num_tokens"])
def place_pairs(
    topk_ids,  # as in count_pairs
    num_tokens,
    counts,  # int32 [NUM_EXPERTS]
    work,  # out: int32 [1 + units, 4]: header, then (expert, first row, number of rows, 0)
    row_pairs,  # out: int32 [rows]: which pair a row belongs to
    TOP_K: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS_PADDED: tl.constexpr,  # to a power of two
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the units and rows of one expert (program e), its pairs in order."""
    expert = tl.program_id(0)
    others = tl.arange(0, EXPERTS_PADDED)
    count = tl.load(counts + others, mask=others < NUM_EXPERTS, other=0)
    units = (count + (TILE - 1)) // TILE
    first_row = tl.sum(tl.where(others < expert, count, 0))
    first_unit = tl.sum(tl.where(others < expert, units, 0))
    own = tl.sum(tl.where(others == expert, count, 0))
    own_units = (own + (TILE - 1)) // TILE
    if expert == NUM_EXPERTS - 1:
        tl.store(work, first_unit + own_units)
        tl.store(work + 1, first_row + own)

    lanes = tl.arange(0, BLOCK)
    for start in range(0, own_units, BLOCK):
        index = start + lanes
        mask = index < own_units
        unit = work + (1 + first_unit + index) * WORK_WORDS
        tl.store(unit, expert + tl.zeros_like(index), mask=mask)
        tl.store(unit + 1, first_row + index * TILE, mask=mask)
        tl.store(unit + 2, tl.minimum(own - index * TILE, TILE), mask=mask)
    row = first_row
    if own > 0:
        num_pairs = num_tokens * TOP_K
        for start in range(0, num_pairs, BLOCK):
            pairs = start + lanes
            experts = tl.load(topk_ids + pairs, mask=pairs < num_pairs, other=-1)
            mine = (experts == expert).to(tl.int32)
            tl.store(row_pairs + row + tl.cumsum(mine, 0) - 1, pairs, mask=mine != 0)
            row += tl.sum(mine)


# -- weights -------------------------------------------------------------------------------------


@triton.jit
def _rotated_field(word, LEFT: tl.constexpr):
    """Return a word's field after a rotation to the left.

    The mask comes first: after the rotation LLVM would split it into two of 16 bits.
    """
    own = word & ((_FIELD >> LEFT | _FIELD << (32 - LEFT)) & 0xFFFFFFFF)
    return (own << LEFT) | (own >> (32 - LEFT))


@triton.jit
def _nibble_pair(word, NUMBER: tl.constexpr):
    """Return codes 2 * NUMBER and 2 * NUMBER + 1 of eight, each where bf16 has its bits."""
    pair = word >> (8 * NUMBER)
    magnitudes = ((pair << 6) & 0x1C0) | ((pair << 18) & 0x1C00000)
    return magnitudes | ((pair << 12) & 0x8000) | ((pair << 24) & 0x80000000)


@triton.jit
def _block(f0, f1, f2, f3, ROWS: tl.constexpr, LIFT: tl.constexpr):
    """Return a block as the first operand of a product, bf16 [ROWS, 32 places].

    f0 .. f3 are uint32 [ROWS, 4 lane groups]: pairs of bf16, values 2i and 2i + 1 of the group.
    """
    pairs = tl.join(tl.join(f0, f2), tl.join(f1, f3))
    halves = tl.join((pairs & 0xFFFF).to(tl.uint16), (pairs >> 16).to(tl.uint16))
    # [row, group, upper pair bit, lower pair bit, half] -> the order of value_at
    bits = tl.reshape(tl.permute(halves, (0, 2, 1, 3, 4)), (ROWS, 32))
    values = bits.to(tl.bfloat16, bitcast=True)
    if LIFT:
        values = (values.to(tl.float32) * _LIFT).to(tl.bfloat16)
    return values


@triton.jit
def _two_stream_blocks(a, b, ROWS: tl.constexpr, LIFT: tl.constexpr):
    """Return two neighbouring blocks of a stream, of which two words share bits."""
    last = (a & _FIRST_OWNS) | ((b << 2) & _SECOND_OWNS)
    first = _block(
        a & _FIELD,
        (a << 4) & _FIELD,
        _rotated_field(a, 26),
        (last << 6) & _FIELD,
        ROWS,
        LIFT,
    )
    second = _block(
        b & _FIELD,
        (b << 4) & _FIELD,
        _rotated_field(b, 26),
        _rotated_field(last, 28),
        ROWS,
        LIFT,
    )
    return first, second


@triton.jit
def _plain_block(word, ROWS: tl.constexpr, LIFT: tl.constexpr):
    return _block(
        _nibble_pair(word, 0),
        _nibble_pair(word, 1),
        _nibble_pair(word, 2),
        _nibble_pair(word, 3),
        ROWS,
        LIFT,
    )


@triton.jit
def _words(pointers, ROWS: tl.constexpr):
    """Return four uint32 [ROWS, 4], loaded as [ROWS, 4, 4]: by block, or by pair of a block."""
    words = tl.load(pointers).to(tl.uint32, bitcast=True)
    even, odd = tl.split(tl.reshape(words, (ROWS, 4, 2, 2)))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def _scaled(products, scales, BLOCK: tl.constexpr):
    """Return a block's products times 2^(s - 65), s the block's byte of each row's word."""
    exponent = ((scales >> (8 * BLOCK)) & 0xFF) + _EXPONENT_BIAS
    return products * (exponent << 23).to(tl.float32, bitcast=True)[:, None]


@triton.jit
def _add_step(
    sums,  # float32 [ROWS, TILE]
    operands,  # pointers, bf16 [32, TILE]: the first block of the step
    codes,  # pointers, int32 [ROWS, 4, 4]: the step's first words
    scales,  # pointers, int32 [ROWS]: a word holds a step's four scales
    BLOCK_WORDS: tl.constexpr,
    FORMAT: tl.constexpr,
    LIFT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return the sums after 128 more values along K."""
    x0 = tl.load(operands)
    x1 = tl.load(operands + 32)
    x2 = tl.load(operands + 64)
    x3 = tl.load(operands + 96)
    if FORMAT == "bf16":
        f0, f1, f2, f3 = _words(codes, ROWS)
        w0 = _block(f0, f1, f2, f3, ROWS, False)
        f0, f1, f2, f3 = _words(codes + BLOCK_WORDS, ROWS)
        w1 = _block(f0, f1, f2, f3, ROWS, False)
        f0, f1, f2, f3 = _words(codes + 2 * BLOCK_WORDS, ROWS)
        w2 = _block(f0, f1, f2, f3, ROWS, False)
        f0, f1, f2, f3 = _words(codes + 3 * BLOCK_WORDS, ROWS)
        w3 = _block(f0, f1, f2, f3, ROWS, False)
        sums += tl.dot(w0, x0)
        sums += tl.dot(w1, x1)
        sums += tl.dot(w2, x2)
        sums += tl.dot(w3, x3)
    else:
        c0, c1, c2, c3 = _words(codes, ROWS)
        s = tl.load(scales).to(tl.uint32, bitcast=True)
        if FORMAT == "stream":
            w0, w1 = _two_stream_blocks(c0, c1, ROWS, LIFT)
            w2, w3 = _two_stream_blocks(c2, c3, ROWS, LIFT)
        else:
            w0 = _plain_block(c0, ROWS, LIFT)
            w1 = _plain_block(c1, ROWS, LIFT)
            w2 = _plain_block(c2, ROWS, LIFT)
            w3 = _plain_block(c3, ROWS, LIFT)
        sums += _scaled(tl.dot(w0, x0), s, 0)
        sums += _scaled(tl.dot(w1, x1), s, 1)
        sums += _scaled(tl.dot(w2, x2), s, 2)
        sums += _scaled(tl.dot(w3, x3), s, 3)
    return sums


@triton.jit
def _by_side(sums, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Return the sums of both sides, [ROWS / 2, TILE] each."""
    by_item = tl.reshape(sums, (ROWS // 32, 2, 16, TILE))
    first, second = tl.split(tl.permute(by_item, (0, 2, 3, 1)))
    return tl.reshape(first, (ROWS // 2, TILE)), tl.reshape(second, (ROWS // 2, TILE))


@triton.jit
def _silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def _row_offsets(ROWS: tl.constexpr, ITEM: tl.constexpr, SIDE: tl.constexpr, PLACE: tl.constexpr):
    """Return the words from a program's first weight row to each of its rows, int32 [ROWS]."""
    number = tl.arange(0, ROWS)
    return number // 32 * ITEM + number // 16 % 2 * SIDE + number % 16 * PLACE


@triton.jit
def _step_offset(step, SLICE: tl.constexpr, SLICE_STEPS: tl.constexpr, STEP: tl.constexpr):
    return step // SLICE_STEPS * SLICE + step % SLICE_STEPS * STEP


@triton.jit
def _code_offsets(rows, GROUP: tl.constexpr, WORD: tl.constexpr):
    four = tl.arange(0, 4)
    return rows[:, None, None] + (four * GROUP)[None, :, None] + (four * WORD)[None, None, :]


# -- products ------------------------------------------------------------------------------------


@triton.jit
def gate_up(
    codes,  # int32 [experts, EXPERT words]: weights of w13, see WordStrides in triton_rung.py
    scales,  # int32 [experts, SCALE_EXPERT words]: codes itself where they lie in between
    operands,  # bf16 [tokens, HIDDEN], from count_pairs
    work,  # int32 [1 + units, 4]
    row_pairs,  # int32 [rows]
    inner,  # out: bf16 [rows, INNER] times FACTOR, in the order of value_at
    TOP_K: tl.constexpr,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    FACTOR: tl.constexpr,
    FORMAT: tl.constexpr,  # how 128 values are stored: "stream", "plain" (MXFP4) or "bf16"
    LIFT: tl.constexpr,  # whether the weights carry 2^64
    TILE: tl.constexpr,  # rows of a unit, at most
    STAGES: tl.constexpr,  # steps whose loads are under way or in use
    ROWS: tl.constexpr,  # weight rows of a program, gate and up together; divides 2 * INNER
    EXPERT: tl.constexpr,
    ITEM: tl.constexpr,
    SIDE: tl.constexpr,
    PLACE: tl.constexpr,
    GROUP: tl.constexpr,
    WORD: tl.constexpr,
    SLICE: tl.constexpr,
    SLICE_STEPS: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    SCALE_EXPERT: tl.constexpr,
    SCALE_ITEM: tl.constexpr,
    SCALE_SIDE: tl.constexpr,
    SCALE_PLACE: tl.constexpr,
    SCALE_SLICE: tl.constexpr,
    SCALE_STEP: tl.constexpr,
):
    """Compute ROWS / 2 neurons of one unit (program (part, unit))."""
    if tl.program_id(1) >= tl.load(work):
        return
    unit = work + (1 + tl.program_id(1)) * WORK_WORDS
    part = tl.program_id(0)
    expert = tl.load(unit).to(tl.int64)
    first_row = tl.load(unit + 1)
    num_rows = tl.load(unit + 2)

    own = tl.arange(0, TILE)
    # Rows that are not there repeat the last one; they are not stored.
    pairs = tl.load(row_pairs + first_row + tl.minimum(own, num_rows - 1))
    x = operands + (pairs // TOP_K).to(tl.int64)[None, :] * HIDDEN + tl.arange(0, 32)[:, None]
    code_rows = _row_offsets(ROWS, ITEM, SIDE, PLACE)
    scale_rows = _row_offsets(ROWS, SCALE_ITEM, SCALE_SIDE, SCALE_PLACE)
    w = codes + expert * EXPERT + part * (ROWS // 32 * ITEM)
    w_rows = _code_offsets(code_rows, GROUP, WORD)
    s = scales + expert * SCALE_EXPERT + part * (ROWS // 32 * SCALE_ITEM)

    sums = tl.zeros((ROWS, TILE), tl.float32)
    for step in tl.range(0, HIDDEN // 128, num_stages=STAGES):
        sums = _add_step(
            sums,
            x + step * 128,
            w + _step_offset(step, SLICE, SLICE_STEPS, STEP) + w_rows,
            s + _step_offset(step, SCALE_SLICE, SLICE_STEPS, SCALE_STEP) + scale_rows,
            BLOCK_WORDS,
            FORMAT,
            LIFT,
            ROWS,
        )
    gate, up = _by_side(sums, ROWS, TILE)
    neurons = part * (ROWS // 2) + tl.arange(0, ROWS // 2)
    places = (neurons & -32) + place_of(neurons & 31)
    values = (_silu(gate) * up * FACTOR).to(tl.bfloat16)
    out = inner + (first_row + own).to(tl.int64)[None, :] * INNER + places[:, None]
    tl.store(out, values, mask=(own < num_rows)[None, :])


@triton.jit
def down(
    codes,  # int32 [experts, EXPERT words]: weights of w2
    scales,  # int32 [experts, SCALE_EXPERT words]
    inner,  # bf16 [rows, INNER], from gate_up
    work,  # int32 [1 + units, 4]
    row_pairs,  # int32 [rows]
    rows,  # out: bf16 [pairs, HIDDEN]; rows of pairs without an expert here are left alone
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    FORMAT: tl.constexpr,
    LIFT: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,  # weight rows at once; divides HIDDEN
    PARTS: tl.constexpr,  # times ROWS that a program takes, one after the other
    EXPERT: tl.constexpr,
    ITEM: tl.constexpr,
    SIDE: tl.constexpr,
    PLACE: tl.constexpr,
    GROUP: tl.constexpr,
    WORD: tl.constexpr,
    SLICE: tl.constexpr,
    SLICE_STEPS: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    SCALE_EXPERT: tl.constexpr,
    SCALE_ITEM: tl.constexpr,
    SCALE_SIDE: tl.constexpr,
    SCALE_PLACE: tl.constexpr,
    SCALE_SLICE: tl.constexpr,
    SCALE_STEP: tl.constexpr,
):
    """Compute PARTS * ROWS outputs of one unit (program (run of parts, unit))."""
    if tl.program_id(1) >= tl.load(work):
        return
    unit = work + (1 + tl.program_id(1)) * WORK_WORDS
    expert = tl.load(unit).to(tl.int64)
    first_row = tl.load(unit + 1)
    num_rows = tl.load(unit + 2)

    own = tl.arange(0, TILE)
    real = tl.minimum(own, num_rows - 1)
    pairs = tl.load(row_pairs + first_row + real).to(tl.int64)
    x = inner + (first_row + real).to(tl.int64)[None, :] * INNER + tl.arange(0, 32)[:, None]
    outputs = rows + pairs[:, None] * HIDDEN + tl.arange(0, ROWS)[None, :]
    code_rows = _row_offsets(ROWS, ITEM, SIDE, PLACE)
    scale_rows = _row_offsets(ROWS, SCALE_ITEM, SCALE_SIDE, SCALE_PLACE)
    w = codes + expert * EXPERT
    w_rows = _code_offsets(code_rows, GROUP, WORD)
    s = scales + expert * SCALE_EXPERT

    # One loop over all parts, not one for each: the loads of the next part start before this ends.
    STEPS: tl.constexpr = INNER // 128
    sums = tl.zeros((ROWS, TILE), tl.float32)
    for index in tl.range(0, PARTS * STEPS, num_stages=STAGES):
        part = tl.program_id(0) * PARTS + index // STEPS
        step = index % STEPS
        w_part = part * (ROWS // 32 * ITEM) + _step_offset(step, SLICE, SLICE_STEPS, STEP)
        s_part = part * (ROWS // 32 * SCALE_ITEM)
        s_part += _step_offset(step, SCALE_SLICE, SLICE_STEPS, SCALE_STEP)
        sums = _add_step(
            sums,
            x + step * 128,
            w + w_part + w_rows,
            s + s_part + scale_rows,
            BLOCK_WORDS,
            FORMAT,
            LIFT,
            ROWS,
        )
        if step == STEPS - 1:
            pairs_of_rows = tl.join(*_by_side(sums.to(tl.bfloat16), ROWS, TILE))
            values = tl.reshape(tl.permute(pairs_of_rows, (1, 0, 2)), (TILE, ROWS))
            tl.store(outputs + part * ROWS, values, mask=(own < num_rows)[:, None])
            sums = tl.zeros((ROWS, TILE), tl.float32)


@triton.jit
def sum_slots(
    rows,  # bf16 [pairs, HIDDEN]
    topk_ids,  # as in count_pairs
    weights,  # float32 [tokens, TOP_K]
    out,  # out: bf16 [tokens, HIDDEN]
    TOP_K: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up BLOCK columns of one token (program (token, block)), slot after slot."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(TOP_K):
        pair = token * TOP_K + slot
        expert = tl.load(topk_ids + pair)
        here = (expert >= 0) & (expert < NUM_EXPERTS)
        weight = tl.load(weights + pair, mask=here, other=0.0)
        values = tl.load(rows + pair * HIDDEN + columns, mask=inside & here, other=0.0)
        total += values.to(tl.float32) * weight
    tl.store(out + token * HIDDEN + columns, total.to(tl.bfloat16), mask=inside)
