"""Our loader puts into SGLang's stock model, byte for byte, what stock's own loader puts there.

Every tensor that hangs on a module is compared: parameters, buffers (also those that are not
saved), aliases and views. One program makes all comparisons (``compare_with_stock.py``); the tests
below ask it by name.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict

import pytest

from sglang_mi300a.tiny_model import make_tiny_model
from sglang_mi300a.weights import artifact
from sglang_mi300a.weights.plan import num_rows
from tests import repository
from tests.weights.compare_with_stock import Case
from tests.weights.conftest import shard

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="needs SGLang on its CPU engine"
)

MXFP4, BF16 = "qwen3_5-moe-mxfp4", "qwen3_5-moe-bf16"
STANDINS = repository.PACKAGE / "cpu_engine" / "standins"


class Models:
    """Checkpoints and artifacts of tiny models, made on demand."""

    def __init__(self, directory):
        self.directory = directory

    def checkpoint(self, kind, seed=0, visual=False):
        path = self.directory / f"{kind}-{seed}-{visual}"
        if not path.exists():
            make_tiny_model(path, kind=kind, seed=seed, visual=visual)
        return path

    def exotic(self):
        """A bf16 checkpoint as other exporters write it.

        Norm weights of the delta nets in float32 with bits that bfloat16 lacks, and the MTP
        layer's experts in one tensor.
        """
        path = self.directory / "exotic"
        if path.exists():
            return path
        import torch
        from safetensors.torch import load_file, save_file

        source = self.checkpoint(BF16, seed=5)
        tensors = {}
        for file in sorted(source.glob("*.safetensors")):
            tensors.update(load_file(file))
        generator = torch.Generator().manual_seed(5)
        for name, tensor in tensors.items():
            if name.endswith("linear_attn.norm.weight"):
                tensors[name] = tensor.float() + torch.rand(tensor.shape, generator=generator) / 256
        prefix = "mtp.layers.0.mlp.experts."
        num = sum(name.startswith(prefix) for name in tensors) // 3

        def stacked(projection):
            return torch.stack(
                [tensors.pop(f"{prefix}{e}.{projection}.weight") for e in range(num)]
            )

        gate, up, down = (stacked(name) for name in ("gate_proj", "up_proj", "down_proj"))
        tensors[f"{prefix}gate_up_proj"] = torch.cat([gate, up], dim=1).contiguous()
        tensors[f"{prefix}down_proj"] = down
        path.mkdir()
        for file in source.iterdir():
            if file.suffix == ".json" and "index" not in file.name:
                shutil.copy(file, path)
        save_file(tensors, path / "model.safetensors")
        return path

    def artifact(self, checkpoint, tp, ep=1, **options):
        suffix = "".join(f"-{key}={value}" for key, value in options.items())
        out = self.directory / f"{checkpoint.name}-tp{tp}-ep{ep}{suffix}"
        if not out.exists():
            shard(checkpoint, out, tp=tp, ep=ep, part_bytes=1 << 21, **options)
        return out

    def damaged(self, directory, name, edit):
        """Return a changed copy."""
        copy = self.directory / f"damaged-{name}"
        if not copy.exists():
            shutil.copytree(directory, copy)
            edit(copy)
        return copy


def ranks(checkpoint, directory, tp, ep=1, **rest):
    return [
        Case(str(checkpoint), str(directory), tp, ep, rank, part, **rest)
        for rank in range(tp)
        for part in ("target", "draft")
    ]


def equal_cases(models):
    """Return cases that must be equal, by what they show."""
    visual, text = models.checkpoint(MXFP4, 0, visual=True), models.checkpoint(MXFP4, 1)
    bf16, exotic = models.checkpoint(BF16, 2, visual=True), models.exotic()
    cases = {}
    for tp, ep in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 4)):
        made = models.artifact(visual, tp, ep)
        cases[f"mxfp4 artifact tp{tp} ep{ep}"] = ranks(visual, made, tp, ep)
    for tp, ep in ((1, 1), (2, 1), (4, 1), (4, 4)):
        cases[f"mxfp4 checkpoint tp{tp} ep{ep}"] = ranks(text, text, tp, ep)
    for tp, ep in ((2, 1), (4, 4)):
        cases[f"bf16 artifact tp{tp} ep{ep}"] = ranks(bf16, models.artifact(bf16, tp, ep), tp, ep)
        cases[f"bf16 checkpoint tp{tp} ep{ep}"] = ranks(bf16, bf16, tp, ep)
    padded = models.artifact(text, 4, heads="padded")
    cases["padded heads, artifact"] = ranks(text, padded, 4, pad_heads=True)
    cases["padded heads, checkpoint"] = ranks(text, text, 4, pad_heads=True)
    cases["heads that need no padding"] = ranks(text, models.artifact(text, 2), 2, pad_heads=True)
    thin = models.artifact(visual, 2, text_only=True)
    cases["text only, artifact"] = ranks(visual, thin, 2, text_only=True)
    cases["text only, checkpoint"] = ranks(visual, visual, 2, text_only=True)
    for name, directory in (("artifact", models.artifact(exotic, 2)), ("checkpoint", exotic)):
        cases[f"float32 norms, stacked draft experts, {name}"] = ranks(exotic, directory, 2)
        # Nothing is rounded on the way into an artifact: float32 serving gets all bits of it.
        cases[f"served at float32, {name}"] = ranks(exotic, directory, 2, dtype="float32")
    one = models.artifact(visual, 1)
    tight = {"ring_bytes": 1 << 20, "threads": 2, "verify": "sample"}
    cases["small ring"] = ranks(visual, one, 1, options=tight)
    return cases


def flip_a_bit(directory):
    tensors = artifact.check_files(artifact.read(directory), 0, "target")
    tensor = next(t for t in tensors if num_rows(t.shape) > 100)
    path = directory / tensor.file
    content = bytearray(path.read_bytes())
    content[tensor.offset] ^= 1
    path.write_bytes(content)


def edit_config(change):
    def edit(directory):
        path = directory / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return edit


REFUSED = {
    "wrong tp": "TP, EP: 2, 1; supported: TP, EP: 4, 1.*--tp-size 2",
    "wrong ep": "TP, EP: 2, 1; supported: TP, EP: 2, 2",
    "wrong heads": "heads: replicated; supported: heads: padded",
    "tower dropped on the way": "text-only: False; supported: text-only: True",
    "tower missing": "text-only: True; supported: text-only: False",
    "no draft inside": "draft: absent; supported: draft: present.*--no-draft",
    "flipped bit": "found checksum .* by the manifest",
    "other sizes": "sizes of the model.*own config.json",
    "experts built unquantised": "has no place for 8 parameters, first .*w13_weight_scale",
    "other sglang": "SGLang: ==0.4.0; supported: SGLang: 0.5",
    "unknown option": "found pattern",
    "no weights": "no .*.safetensors",
    "gate before the first byte": "gate 1: found a dead",
}
"""Words of each refusal."""


def refused_cases(models):
    """Return the case of each refusal."""
    visual = models.checkpoint(MXFP4, 0, visual=True)
    text = models.checkpoint(MXFP4, 1)
    two, thin = models.artifact(visual, 2), models.artifact(visual, 2, text_only=True)

    def case(directory, **rest):
        return Case("", str(directory), **{"tp": 2, **rest})

    def edited(directory, name, change):
        return models.damaged(directory, name, edit_config(change))

    fewer = edited(two, "sizes", lambda c: c["text_config"].update(num_experts=8))
    plain = edited(two, "unquantised", lambda c: c.pop("quantization_config"))
    towered = edited(thin, "tower", lambda c: c.update(language_model_only=False))
    bare = models.damaged(text, "bare", lambda d: [f.unlink() for f in d.glob("*.safetensors*")])
    return {
        "wrong tp": case(two, tp=4),
        "wrong ep": case(two, ep=2),
        "wrong heads": case(models.artifact(text, 4), tp=4, pad_heads=True),
        "tower dropped on the way": case(two, text_only=True),
        "tower missing": case(towered),
        "no draft inside": case(models.artifact(text, 2, draft=False), part="draft"),
        "flipped bit": case(models.damaged(two, "bit", flip_a_bit)),
        "other sizes": case(fewer),
        "experts built unquantised": case(plain),
        "other sglang": case(models.artifact(visual, 2, sglang="==0.4.0")),
        "unknown option": case(two, options={"pattern": "x"}),
        "no weights": case(bare),
        "gate before the first byte": case(bare, gate_refuses=True),
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return ``{name: (cases, results)}`` of everything that is compared."""
    models = Models(tmp_path_factory.mktemp("models"))
    control = Case(*2 * (str(models.checkpoint(MXFP4, 1)),), skip_buffers=True)
    wanted = {
        **equal_cases(models),
        "control": [control],
        **{name: [case] for name, case in refused_cases(models).items()},
    }
    flat = [case for cases in wanted.values() for case in cases]
    ran = subprocess.run(
        [sys.executable, str(repository.ROOT / "tests/weights/compare_with_stock.py")],
        input=json.dumps([asdict(case) for case in flat]),
        cwd=repository.ROOT,
        env={**os.environ, "PYTHONPATH": f"{STANDINS}{os.pathsep}{repository.ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    marked = [line for line in ran.stdout.splitlines() if line.startswith("RESULTS ")]
    assert marked, ran.stderr[-4000:]
    found = iter(json.loads(marked[0].removeprefix("RESULTS ")))
    return {name: (cases, [next(found) for _ in cases]) for name, cases in wanted.items()}


EQUAL = (
    "mxfp4 artifact tp1 ep1",
    "mxfp4 artifact tp2 ep1",
    "mxfp4 artifact tp4 ep1",
    "mxfp4 artifact tp2 ep2",
    "mxfp4 artifact tp4 ep2",
    "mxfp4 artifact tp4 ep4",
    "mxfp4 checkpoint tp1 ep1",
    "mxfp4 checkpoint tp2 ep1",
    "mxfp4 checkpoint tp4 ep1",
    "mxfp4 checkpoint tp4 ep4",
    "bf16 artifact tp2 ep1",
    "bf16 artifact tp4 ep4",
    "bf16 checkpoint tp2 ep1",
    "bf16 checkpoint tp4 ep4",
    "padded heads, artifact",
    "padded heads, checkpoint",
    "heads that need no padding",
    "text only, artifact",
    "text only, checkpoint",
    "float32 norms, stacked draft experts, artifact",
    "float32 norms, stacked draft experts, checkpoint",
    "served at float32, artifact",
    "served at float32, checkpoint",
    "small ring",
)


@pytest.mark.parametrize("name", EQUAL)
def test_every_tensor_is_equal_on_every_rank(results, name):
    cases, found = results[name]
    for case, result in zip(cases, found, strict=True):
        assert result["error"] == "", case
        assert result["different"] == [], case
        assert result["num_equal"] > (20 if case.part == "draft" else 80), case
        assert result["num_buffers"] > 5, case
        assert result["lent_is_zero"], case
        assert result["after_load"] == [case.part == "draft"], case
        assert result["report"]["origin"] in name or name.startswith(("small", "heads")), case


def test_leaving_buffers_out_would_be_noticed(results):
    """The control: without that step every buffer of a norm differs, and nothing else."""
    ((_, (result,)),) = [results["control"]]
    assert len(result["different"]) == 11
    assert all(name.endswith(".gemma_weight") for name in result["different"])


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused(results, name):
    _, (result,) = results[name]
    assert re.search(REFUSED[name], result["error"]), result["error"]
    assert result["after_load"] == []


def test_every_case_is_looked_at(results):
    assert set(results) == {*EQUAL, *REFUSED, "control"}
