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
from dataclasses import asdict, replace

import pytest

from sglang_mi300a import artifact_manifest, mxfp4
from sglang_mi300a.tiny_model import TinySizes, make_tiny_model
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

    def wide(self):
        """A checkpoint of the hidden size that the kernels are made for."""
        path = self.directory / "wide"
        if not path.exists():
            sizes = TinySizes(hidden=4096, experts=2, experts_per_token=2, moe_intermediate=256)
            make_tiny_model(path, kind=MXFP4, seed=3, mtp=False, sizes=sizes)
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

    def quantised_draft(self, source, exclude):
        """A copy whose MTP experts are MXFP4, with another exclude list of its configuration."""
        path = self.directory / f"{source.name}-quantised-draft-{exclude.__name__}"
        if path.exists():
            return path
        import torch
        from safetensors.torch import load_file, save_file

        shutil.copytree(source, path)
        edit_config(lambda config: exclude(config["quantization_config"]["exclude"]))(path)
        index = path / "model.safetensors.index.json"
        weight_map = json.loads(index.read_text())["weight_map"]
        for file in sorted(path.glob("*.safetensors")):
            tensors = load_file(file)
            for name in [n for n in tensors if n.startswith("mtp.") and ".mlp.experts." in n]:
                packed, scales = mxfp4.quantise(tensors[name].float().numpy())
                tensors[name] = torch.from_numpy(packed)
                tensors[f"{name}_scale"] = torch.from_numpy(scales)
                weight_map[f"{name}_scale"] = file.name
            save_file(tensors, file)
        index.write_text(json.dumps({"weight_map": weight_map}))
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


def as_it_was(exclude):
    """Leave every mtp.* module in the list, as a checkpoint with a bf16 draft has it."""


def all_but_experts(exclude):
    """Name the draft's modules so that stock quantises its experts and nothing else."""
    exclude[:] = [name for name in exclude if not name.startswith("mtp.")]
    exclude.append(r"re:mtp\..*(self_attn|mlp\.gate|shared_expert|fc)")


def nothing_of_the_draft(exclude):
    """Leave the draft's modules out."""
    exclude[:] = [name for name in exclude if not name.startswith("mtp.")]


def ranks(checkpoint, directory, tp, ep=1, **rest):
    return [
        Case(str(checkpoint), str(directory), tp, ep, rank, part, **rest)
        for rank in range(tp)
        for part in ("target", "draft")
    ]


def targets(checkpoint, directory, tp, **rest):
    return [Case(str(checkpoint), str(directory), tp, rank=rank, **rest) for rank in range(tp)]


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
    two = models.artifact(visual, 2)
    thin = models.artifact(visual, 2, text_only=True)
    cases["text only, artifact"] = ranks(visual, thin, 2, text_only=True)
    cases["text only, checkpoint"] = ranks(visual, visual, 2, text_only=True)
    for name, directory in (("artifact", models.artifact(exotic, 2)), ("checkpoint", exotic)):
        cases[f"float32 norms, stacked draft experts, {name}"] = ranks(exotic, directory, 2)
        # Nothing is rounded on the way into an artifact: float32 serving gets all bits of it.
        cases[f"served at float32, {name}"] = ranks(exotic, directory, 2, dtype="float32")
    # A draft with MXFP4 experts. Stock builds one where the exclude list is written for it; ours
    # goes by what is stored, whatever that list says.
    for_stock = models.quantised_draft(text, all_but_experts)
    for tp, ep in ((1, 1), (2, 1), (4, 4)):
        made = models.artifact(text, tp, ep, draft_experts="mxfp4")
        cases[f"quantised draft, artifact tp{tp} ep{ep}"] = ranks(for_stock, made, tp, ep)
    as_found = models.quantised_draft(text, as_it_was)
    cases["quantised draft, checkpoint"] = ranks(for_stock, as_found, 2)
    made = models.artifact(as_found, 2)
    cases["quantised draft in the checkpoint, artifact"] = ranks(for_stock, made, 2)
    unlisted = models.damaged(text, "unlisted-draft", edit_config(unlist_the_draft))
    cases["bf16 draft that no list excludes, checkpoint"] = ranks(text, unlisted, 2)
    one = models.artifact(visual, 1)
    straight = {"read_into_parameters": True}
    cases["straight into the parameters, artifact"] = ranks(visual, two, 2, options=straight)
    wide, streams = models.wide(), {"layout": "stream/1"}
    for tp in (1, 2):
        made = models.artifact(wide, tp)
        cases[f"streams, artifact tp{tp}"] = targets(wide, made, tp, **streams)
        cases[f"streams, checkpoint tp{tp}"] = targets(wide, wide, tp, **streams)
    made = models.artifact(wide, 1, layout="plain/1")
    cases["sizes of a stream, plain artifact"] = targets(wide, made, 1)
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


def sign(**changes):
    """Change what a manifest says, and its own checksum with it."""

    def edit(directory):
        manifest = replace(artifact_manifest.read(directory), **changes)
        (directory / artifact_manifest.NAME).write_text(manifest.render())

    return edit


def next_version(directory):
    path = directory / artifact_manifest.NAME
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))


def edit_config(change):
    def edit(directory):
        path = directory / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return edit


def unlist_the_draft(config):
    nothing_of_the_draft(config["quantization_config"]["exclude"])


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
    "other layout": r"layout: stream/9; supported: layout: plain/1.*shard-weights again",
    "streams for a process of plain experts": "layout: stream/1; supported: layout: plain/1",
    "plain experts for a process of streams": "layout: plain/1; supported: layout: stream/1",
    "other version of the format": "version 2; supported: .*version 1",
    "unknown option": "found pattern",
    "no weights": "no .*.safetensors",
    "gate before the first byte": "gate 1: found a dead",
    "another rank cannot open its files": "^rank 1: a part: found not readable",
    "another rank cannot read its files": "^rank 1: a part: found not readable",
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
        "other layout": case(models.damaged(two, "layout", sign(layout="stream/9"))),
        "streams for a process of plain experts": case(models.artifact(models.wide(), 2)),
        "plain experts for a process of streams": case(two, layout="stream/1"),
        "other version of the format": case(models.damaged(two, "version", next_version)),
        "unknown option": case(two, options={"pattern": "x"}),
        "no weights": case(bare),
        "gate before the first byte": case(bare, gate_refuses=True),
        "another rank cannot open its files": case(two, other_fails=1),
        "another rank cannot read its files": case(two, other_fails=2),
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
    "streams, artifact tp1",
    "streams, artifact tp2",
    "streams, checkpoint tp1",
    "streams, checkpoint tp2",
    "sizes of a stream, plain artifact",
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
    "quantised draft, artifact tp1 ep1",
    "quantised draft, artifact tp2 ep1",
    "quantised draft, artifact tp4 ep4",
    "quantised draft, checkpoint",
    "quantised draft in the checkpoint, artifact",
    "bf16 draft that no list excludes, checkpoint",
    "straight into the parameters, artifact",
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
        assert result["report"]["is_straight"] == name.startswith("straight"), case
        assert result["quantised_draft"] == (
            name.startswith("quantised draft") and case.part == "draft"
        ), case


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
    # The gate and bad options speak for themselves; the rest goes into the rank's boot report.
    speaks_for_itself = name in ("unknown option", "gate before the first byte")
    assert result["refusals"] == ([] if speaks_for_itself else [result["error"]])


def test_every_case_is_looked_at(results):
    assert set(results) == {*EQUAL, *REFUSED, "control"}
