"""What this room changes in SGLang's ranks on a CPU; on other devices nothing of it is installed.

SGLang's CPU engine is written for processors with AMX and SGLang's own compiled kernels. The
stand-ins keep AMX off everywhere, so that one path is taken on all machines; these hooks replace
what that path still asks of an accelerator.
"""

from __future__ import annotations

from sglang_mi300a.hooking import AnySeam, Hook, Reliance

_BODIES = "sglang_mi300a.cpu_engine.hook_bodies"
_OPERATORS = "sglang_mi300a.cpu_engine.operators"
_AMX = "sglang.srt.layers.attention.intel_amx_backend"

LAUNCHER_HOOKS: tuple[AnySeam, ...] = (
    Hook(
        name="cpu_engine.extra_buffer",
        target="sglang.srt.server_args.ServerArgs._validate_mamba_extra_buffer",
        kind="around",
        call=f"{_BODIES}:allow_extra_buffer",
        needs=("self", "view", "model_arch"),
        roles=("launcher",),
        device="cpu",
        required=False,  # without it stock refuses by itself
        reached_by="start",
        why="stock lets requests keep states to take snapshots in (extra_buffer) only where its "
        "kernels give out the states between chunks; the operators here do too, and the presets' "
        "prefix cache needs it",
        remove_when="SGLang's CPU operators give out the states between chunks",
    ),
)

HOOKS: tuple[AnySeam, ...] = (
    *LAUNCHER_HOOKS,
    Hook(
        name="cpu_engine.gated_norm",
        target="sglang.kernels.ops.attention.fla.layernorm_gated.RMSNorm.forward",
        kind="replace",
        call=f"{_BODIES}:gated_norm",
        needs=("self", "x", "z"),
        device="cpu",
        reached_by="prefill",
        why="stock takes its CPU operator only with AMX and a Triton kernel otherwise, which fails "
        "without an accelerator; no option chooses between them",
        remove_when="SGLang takes its CPU operator on every CPU",
    ),
    Hook(
        name="cpu_engine.shared_expert_gate",
        target="sglang.kernels.ops.elementwise.elementwise.fused_gate_sigmoid_mul_add",
        kind="replace",
        call=f"{_OPERATORS}.gating:add_gated_shared_expert",
        needs=("hidden_states", "gate_weight", "shared_output", "final_hidden_states"),
        callers=("sglang.srt.models.qwen2_moe.fused_gate_sigmoid_mul_add",),
        device="cpu",
        reached_by="prefill",
        why="stock always launches this Triton kernel where AMX is off, and Triton has no CPU "
        "driver; no option avoids it",
        remove_when="SGLang gates the shared expert in torch on a CPU",
    ),
    Hook(
        name="cpu_engine.quark_float32",
        target="sglang.srt.layers.quantization.quark.quark.QuarkConfig.get_supported_act_dtypes",
        kind="after",
        call=f"{_BODIES}:allow_float32",
        device="cpu",
        required=False,  # called for Quark models only; without it stock refuses float32 by itself
        reached_by="load",
        why="token-exact comparison with another implementation needs float32, which stock refuses "
        "for Quark models (their kernels take 16-bit activations; the CPU references take any)",
        remove_when="SGLang allows float32 for Quark models on a CPU",
    ),
    Hook(
        name="cpu_engine.foreign_experts",
        target="sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
        kind="around",
        call=f"{_BODIES}:experts_of_this_rank",
        needs=("layer", "x", "topk_output", "moe_runner_config"),
        device="cpu",
        # Called for unquantised experts only (those of the draft layer), and needed only where
        # expert parallelism gives a rank less than all of them; stock then stops by itself.
        required=False,
        reached_by="draft",
        why="with expert parallelism the dispatcher marks the experts of other ranks with -1, and "
        "stock's torch experts index with it and fail; no option keeps global ids on a CPU",
        remove_when="moe_forward_native leaves ids below 0 out",
    ),
    Hook(
        name="cpu_engine.state_pool",
        target="sglang.srt.mem_cache.memory_pool.MambaPool.__init__",
        kind="around",
        call=f"{_BODIES}:state_pool_on_cpu",
        needs=("self",),
        device="cpu",
        reached_by="pools",
        only_with_draft=True,
        why='stock allocates the scratch for verifying drafts with device="cuda" written out, so '
        "a hybrid model with MTP cannot start on any CPU",
        remove_when="SGLang allocates that scratch on the pool's device",
    ),
    Hook(
        name="cpu_engine.extend_lengths",
        target=f"{_AMX}.IntelAMXAttnBackend.forward_extend",
        kind="around",
        call=f"{_BODIES}:extend_with_planned_lengths",
        needs=("self", "q", "k", "v", "layer", "forward_batch"),
        device="cpu",
        reached_by="prefill",
        only_with_draft=True,
        why="stock works out the lengths with the drafted tokens and then overwrites them with "
        "those without; verified drafts attend to the wrong tokens and the output is wrong",
        remove_when="IntelAMXAttnBackend.forward_extend keeps the lengths of its metadata",
    ),
    Hook(
        name="cpu_engine.draft_lengths",
        target=f"{_AMX}.IntelAMXAttnBackend.forward_decode",
        kind="around",
        call=f"{_BODIES}:decode_with_planned_lengths",
        needs=("self", "q", "k", "v", "layer", "forward_batch"),
        device="cpu",
        # One drafted token a step comes out of the draft's extend pass, so this is reached only
        # with two or more. Drafts are verified: without it they are worse guesses, and the output
        # stays right.
        required=False,
        reached_by="draft",
        only_with_draft=True,
        why="the same overwriting in the draft's decode steps: later drafts are guessed without "
        "seeing the earlier ones",
        remove_when="IntelAMXAttnBackend.forward_decode keeps the lengths of its metadata",
    ),
    Hook(
        name="cpu_engine.commit_states",
        target="sglang.kernels.ops.mamba.mamba_state_scatter_triton."
        "scatter_mamba_states_after_mtp_verify",
        kind="replace",
        call=f"{_OPERATORS}.speculative_verify:commit_accepted_states",
        needs=(
            "mamba_caches",
            "state_indices_tensor",
            "last_correct_step_indices",
            "mamba_track_indices",
            "mamba_steps_to_track",
        ),
        callers=(
            "sglang.srt.layers.attention.hybrid_linear_attn_backend."
            "scatter_mamba_states_after_mtp_verify",
        ),
        device="cpu",
        reached_by="verify",
        only_with_draft=True,
        why="stock commits the linear-attention state behind the last accepted draft with a Triton "
        "kernel and refuses host tensors",
        remove_when="SGLang commits these states in torch on a CPU",
    ),
    Hook(
        name="cpu_engine.share_embedding_and_head",
        target="sglang.srt.models.qwen3_5_mtp.Qwen3_5ForCausalLMMTP.set_embed_and_head",
        kind="around",
        call=f"{_BODIES}:share_embedding_and_head",
        needs=("self", "embed", "head"),
        device="cpu",
        reached_by="load",
        only_with_draft=True,
        why="stock waits for the accelerator after giving the draft the target's embedding and "
        "head, which fails where there is none",
        remove_when="SGLang does not call torch.cuda.synchronize() there on a CPU",
    ),
    Hook(
        name="cpu_engine.snapshot_lines",
        target="sglang.srt.managers.schedule_batch.set_mamba_track_indices_from_reqs",
        kind="around",
        call=f"{_BODIES}:without_pinning",
        callers=("sglang.srt.speculative.spec_utils.set_mamba_track_indices_from_reqs",),
        device="cpu",
        # Called only where requests keep states to take snapshots in; stock then stops by itself,
        # as there is no pinned memory.
        required=False,
        reached_by="decode",
        why="stock pins the list of lines for an accelerator, which fails where there is none",
        remove_when="SGLang does not pin that list on a CPU",
    ),
    Hook(
        name="cpu_engine.snapshot_mask",
        target="sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_decode",
        kind="around",
        call=f"{_BODIES}:without_pinning",
        device="cpu",
        # Needed only where requests keep states to take snapshots in and nothing is drafted; stock
        # then stops by itself, as there is no pinned memory.
        required=False,
        reached_by="decode",
        why="stock pins the mask of requests whose snapshot is due for an accelerator",
        remove_when="SGLang does not pin that mask on a CPU",
    ),
    Hook(
        name="cpu_engine.snapshot_states",
        target="sglang.kernels.ops.mamba.mamba_state_scatter_triton.track_mamba_states_all_layers",
        kind="replace",
        call=f"{_OPERATORS}.snapshots:copy_tracked_states",
        needs=(
            "conv_states_pool",
            "ssm_states_pool",
            "cache_indices",
            "mamba_track_mask",
            "mamba_track_indices",
            "batch_size",
            "check_freed_slots",
        ),
        callers=(
            "sglang.srt.layers.attention.hybrid_linear_attn_backend.track_mamba_states_all_layers",
        ),
        device="cpu",
        # Called only where requests keep states to take snapshots in and nothing is drafted; stock
        # then stops by itself, as Triton has no CPU driver.
        required=False,
        reached_by="decode",
        why="stock copies the states of decoded tokens to the prefix cache with a Triton kernel",
        remove_when="SGLang copies these states in torch on a CPU",
    ),
    Reliance(
        name="cpu_engine.extend_metadata",
        target=f"{_AMX}.IntelAMXAttnBackend._build_extend_metadata",
        device="cpu",
        only_with_draft=True,
        why="its first value is the lengths with the drafted tokens",
        remove_when="cpu_engine.extend_lengths is removed",
    ),
    Reliance(
        name="cpu_engine.draft_metadata",
        target=f"{_AMX}.IntelAMXMultiStepDraftBackend.init_forward_metadata",
        device="cpu",
        only_with_draft=True,
        required=False,
        why="the second value of draft_decode_metadata is the lengths of each draft step",
        remove_when="cpu_engine.draft_lengths is removed",
    ),
    Reliance(
        name="cpu_engine.attention_fallback",
        target="sglang.srt.arg_groups.overrides._attention_backend_platform_fallbacks",
        device="cpu",
        only_with_draft=True,
        why="where AMX is off it takes intel_amx out of the common field and leaves the two split "
        "fields, which the recipe sets",
        remove_when="SGLang has another attention backend for MTP on a CPU",
    ),
)
