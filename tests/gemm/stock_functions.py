"""Single functions of stock SGLang, run as they stand in its source, without importing SGLang."""

import ast
import bisect
import textwrap
from types import SimpleNamespace
from typing import Any, Literal

from sglang_mi300a import plugin

NAMES = {
    "List": list,
    "Tuple": tuple,
    "Any": Any,
    "Literal": Literal,
    "bisect": bisect,
    "ModelRunner": Any,
}


def function(module: str, name: str, **names):
    """Return a function or method of SGLang, compiled alone.

    Args:
        module: Path under the sglang package, as ``srt/server_args.py``.
        name: Its name, unique in the file.
        names: Globals it uses.
    """
    text = (plugin.installed_sglang().root / "sglang" / module).read_text()
    found = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    assert len(found) == 1, f"{name} stands {len(found)} times in {module}"
    source = textwrap.dedent(ast.get_source_segment(text, found[0]))
    scope = {**NAMES, **names}
    exec(compile(source, module, "exec"), scope)
    return scope[name]


def decode_batch_sizes(max_bs: int, *, drafts: bool, padded: bool = True) -> list[int]:
    """Return what stock's server arguments choose."""
    arguments = SimpleNamespace(
        disable_cuda_graph_padding=not padded,
        speculative_algorithm="NEXTN" if drafts else None,
    )
    choose = function("srt/server_args.py", "_generate_decode_cuda_graph_batch_sizes")
    return choose(arguments, max_bs)


def prefill_token_counts(max_bs: int) -> list[int]:
    """Return what stock's server arguments choose."""
    choose = function("srt/server_args.py", "_generate_prefill_cuda_graph_batch_sizes")
    return choose(None, max_bs)


def captured_batch_sizes(sizes: list[int], max_running_requests: int) -> list[int]:
    """Return what stock's graph runner captures."""
    execution = SimpleNamespace(
        graph=SimpleNamespace(
            cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(bs=sizes)),
            torch_compile_max_bs=0,
        ),
        overlap=SimpleNamespace(enable_two_batch_overlap=False),
    )
    choose = function(
        "srt/model_executor/runner/base_cuda_graph_runner.py",
        "get_batch_sizes_to_capture",
        get_exec=lambda: execution,
        get_flags=lambda: SimpleNamespace(capture=SimpleNamespace(enable_torch_compile=False)),
        get_cuda_graph_batch_size_alignment=lambda _: 1,
        get_cuda_graph_max_batch_size=lambda _, most: most,
    )
    runner = SimpleNamespace(
        server_args=None, req_to_token_pool=SimpleNamespace(size=max_running_requests)
    )
    return choose(runner)[0]


def rows_of_a_request(phase: str, *, topk: int, draft_tokens: int) -> int:
    """Return stock's static width of an MTP phase."""
    spec = SimpleNamespace(speculative_eagle_topk=topk, speculative_num_draft_tokens=draft_tokens)
    width = function(
        "srt/speculative/spec_utils.py",
        "resolve_num_tokens_per_req",
        get_spec=lambda: spec,
        Optional=Literal,
    )
    algorithm = SimpleNamespace(
        get_num_tokens_per_req_for_target_verify=lambda tokens, is_draft: tokens
    )
    return width(phase=phase, spec_algorithm=algorithm)
