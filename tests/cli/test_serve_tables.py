"""What a launch does about its gemm table: use it, say what one would bring, or refuse to start."""

import dataclasses
import os

import pytest

from sglang_mi300a import device, fitted_constants, served_model, settings, tables
from sglang_mi300a.cli import (
    gemm_grid,
    launch,
    serve,
    serve_kernels,
    serve_memory,
    serve_tables,
    tune,
)
from sglang_mi300a.cli.one_file_tables import CONSTANTS
from sglang_mi300a.device import Accelerator
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import staging, tuning_plan
from sglang_mi300a.serving import preset
from tests.gemm.sample_tables import DEVICE, ROWS, constants, table
from tests.pools.plan import models

MODEL = served_model.read(models.REAL)
FIELDS = {
    line.name: line.value
    for line in preset.load("tuned").on("gfx942").values()
    if not line.is_environment
}
GRID = gemm_grid.of_preset(MODEL, "tuned", 4)
FEW_TOKENS = len([cell for cell in GRID.cells() if cell.m <= 256])
MINUTES = tuning_plan.minutes_for(GRID.num_cells, 4)


@pytest.fixture(autouse=True)
def node(tmp_path, monkeypatch):
    """Four MI300A whose product can be changed, and a state directory."""
    found = [Accelerator(n, "AMD Instinct MI300A", "gfx942", 228, True, n) for n in range(4)]
    monkeypatch.setattr(device, "accelerators", lambda *_: found)
    monkeypatch.setenv("SGLANG_MI300A_STATE_DIR", str(tmp_path))
    for name in ("PYTORCH_TUNABLEOP_FILENAME", "AITER_CONFIG_GEMM_BF16"):
        monkeypatch.delenv(name, raising=False)
    return found


def prepared(tp=4, *, on_cpu=False):
    return serve_tables.prepare(MODEL, FIELDS, tp, 1, on_cpu=on_cpu)


def test_without_a_table_the_server_starts_and_says_what_one_would_bring():
    found = prepared()
    assert found.environment == {}
    assert found.record["table"] == ""
    assert found.record["kernels"] == "own"
    of = f"of {GRID.num_cells} dense products"
    assert f"our kernels serve {FEW_TOKENS} {of}, those of at most 256 tokens" in found.said[0]
    assert f"`sglang-mi300a tune gemm` makes one in about {MINUTES} minutes" in found.said[1]


def test_the_library_can_be_asked_to_serve_them_all(monkeypatch):
    monkeypatch.setenv("SGLANG_MI300A_DENSE_KERNELS", "library")
    found = prepared()
    assert found.record["kernels"] == "library"
    assert "our kernels serve 0 of " in found.said[0]


def test_an_applied_table_is_named_to_tunableop_and_aiter_and_its_coverage_said(tmp_path):
    applied = staging.apply(table(), tmp_path / "tables", 4)
    found = prepared()
    assert found.environment == {
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "PYTORCH_TUNABLEOP_TUNING": "0",
        "PYTORCH_TUNABLEOP_FILENAME": f"{applied.directory}/tunableop%d.csv",
        "AITER_CONFIG_GEMM_BF16": f"{applied.directory}/aiter_bf16.csv",
    }
    assert found.record["table"] == str(applied.directory)
    covered = set(ROWS) & set(GRID.cells())
    assert f"covers {len(covered)} of {GRID.num_cells} products" in found.said[0]
    assert "tuned 0 of " in found.said[0]
    assert "lacks 62080 x 4096 at M 1, 2, 3" in found.said[1]
    assert "--tune-first" in found.said[-1]


def other_cus(found):
    found[0] = Accelerator(0, "AMD Instinct MI300A", "gfx942", 38, True, 0)


def other_name(found):
    found[0] = Accelerator(0, "AMD Instinct MI300X", "gfx942", 304, False, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [(other_cus, "visible_cus: table 228, here 38"), (other_name, "visible_cus: table 228, here")],
)
def test_a_table_of_another_device_stops_the_server_unless_untuned_is_allowed(
    node, tmp_path, monkeypatch, change, said
):
    staging.apply(table(), tmp_path / "tables", 4)
    change(node)
    with pytest.raises(UserError) as refusal:
        prepared()
    assert said in str(refusal.value)
    assert "sglang-mi300a tune gemm" in str(refusal.value)
    monkeypatch.setenv("SGLANG_MI300A_ALLOW_UNTUNED", "1")
    found = prepared()
    assert found.environment == {}
    assert found.record["table"] == ""
    assert found.said[0].startswith("serving untuned: ")


def test_a_spoilt_file_stops_the_server(tmp_path):
    applied = staging.apply(table(), tmp_path / "tables", 4)
    file = applied.directory / "tunableop2.csv"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(UserError, match=r"tunableop2.csv: line 1.*tables apply"):
        prepared()


def test_too_few_files_for_the_ranks_stop_the_server(tmp_path):
    staging.apply(table(), tmp_path / "tables", 2)
    with pytest.raises(UserError, match="files for 2, 4 ranks"):
        prepared()


def test_a_users_own_tunableop_file_beside_an_applied_table_is_refused(tmp_path, monkeypatch):
    staging.apply(table(), tmp_path / "tables", 4)
    monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", "/mine.csv")
    with pytest.raises(UserError, match="PYTORCH_TUNABLEOP_FILENAME: set to '/mine.csv'"):
        prepared()


def test_the_cpu_engine_has_the_grid_and_no_table(tmp_path):
    staging.apply(table(), tmp_path / "tables", 4)
    found = prepared(2, on_cpu=True)
    assert (found.record["table"], found.environment, found.said) == ("", {}, ())
    assert found.record["grid"]["124160x4096"][:3] == [1, 2, 3]


def applied_constants(text="", **changes):
    """Lay the constants of a refit, or a text, where they are applied; return the path."""
    path = CONSTANTS.destination()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or tables.render(constants(**changes)))
    return path


def test_the_constants_of_a_refit_reach_the_ranks_with_a_table_and_without(tmp_path):
    path = applied_constants()
    for _ in range(2):
        found = prepared()
        assert found.record["constants"] == fitted_constants.values(constants())
        assert found.said[-1] == f"the model chooses dense products by the constants of {path}"
        staging.apply(table(), tmp_path / "tables", 4)
    assert found.record["table"] != ""


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        ({"software": {"kernels": "0" * 16}}, "kernels: table '0000000000000000', here"),
        ({"device": {**DEVICE, "visible_cus": 304}}, "visible_cus: table 304, here 228"),
        ({"text": "no table"}, "no JSON"),
    ],
)
def test_constants_that_do_not_fit_are_said_in_a_line_and_not_used(spoilt, why):
    path = applied_constants(**spoilt)
    found = prepared()
    assert found.record["constants"] == {}
    (line,) = [line for line in found.said if "constants" in line]
    assert line.startswith("the model chooses dense products by its shipped constants: ")
    assert str(path) in line
    assert why in line
    assert "sglang-mi300a report ingest" in line or "make it again" in line


def test_constants_choose_nothing_where_the_library_serves_all(monkeypatch):
    applied_constants()
    monkeypatch.setenv("SGLANG_MI300A_DENSE_KERNELS", "library")
    found = prepared()
    assert found.record["constants"] == {}
    assert not any("constants" in line for line in found.said)
    assert prepared(2, on_cpu=True).record["constants"] == {}


def test_tune_first_tunes_for_the_server_that_is_asked_for(monkeypatch):
    import argparse

    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    args, args_rest = parser.parse_known_args(
        ["--model", str(models.REAL), "--tune-first", "--chunked-prefill-size", "1024", "--x", "1"]
    )
    args.rest = args_rest
    asked = []
    monkeypatch.setattr(tune, "fill", lambda grid, ordinals: asked.append((grid, ordinals)))
    serve._tune_first(args)
    ((grid, ordinals),) = asked
    assert grid.batches.chunk_tokens == 1024
    assert ordinals == [0, 1, 2, 3]


@dataclasses.dataclass
class StockArguments:
    """What SGLang's arguments are to the launcher here."""

    model_path: str = str(models.REAL)
    host: str = "127.0.0.1"
    port: int = 30000
    custom_sigquit_handler: object = None
    watchdog_timeout: float = 300


@pytest.fixture
def start(monkeypatch):
    """Return a function that starts stock with the flag and returns what its arguments become."""
    record = settings.Resolved("tuned", "gfx942", "", 4, 1, 4, True, 0, 0, 0, "")
    decision = launch.Decision(record, {}, {}, FIELDS, MODEL, ())
    monkeypatch.setattr(os, "environ", os.environ.copy())  # a launch writes into it
    monkeypatch.setattr(launch, "decide", lambda *_: decision)
    for name in ("check_fit", "check_port", "_stay_beside", "_warm_up_before_listening"):
        monkeypatch.setattr(launch, name, lambda *_: None)
    monkeypatch.setattr(serve_memory, "prepare", lambda *_, **__: serve_memory.Prepared())

    def call(to_compile=(), **given):
        monkeypatch.setattr(launch, "_applied", None)
        kernels = serve_kernels.Prepared(to_compile=to_compile)
        monkeypatch.setattr(serve_kernels, "prepare", lambda *_, **__: kernels)
        arguments = StockArguments(**given)
        with launch.flag_given("tuned"):
            launch.apply_preset(arguments)
        return arguments

    return call


def test_stock_started_with_the_flag_hands_the_applied_table_to_every_rank(start, tmp_path):
    applied = staging.apply(table(), tmp_path / "tables", 4)
    start()
    assert {**os.environ, **applied.environment()} == os.environ
    assert settings.resolved().gemm["table"] == str(applied.directory)


def test_stocks_watchdog_waits_longer_for_what_is_to_be_compiled_unless_the_user_said_how_long(
    start,
):
    assert start().watchdog_timeout == 300
    assert start(to_compile=("rmsnorm", "sample")).watchdog_timeout == 300 + 363 + 100
    assert start(to_compile=("rmsnorm",), watchdog_timeout=900).watchdog_timeout == 900


def test_allow_untuned_reaches_the_launch_through_the_environment(monkeypatch):
    import argparse

    monkeypatch.setattr(device, "accelerators", lambda *_: [])
    monkeypatch.setattr(serve, "check_versions", lambda: None)
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    args = parser.parse_args(["--model", str(models.REAL), "--allow-untuned"])
    args.rest = []
    assert serve.compose(args)[1]["SGLANG_MI300A_ALLOW_UNTUNED"] == "1"
