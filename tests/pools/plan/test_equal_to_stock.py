"""Our formulas give, to the byte, what stock SGLang's own classes allocate and decide."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from sglang_mi300a.pools import pool_sizes
from tests import repository
from tests.pools.plan import models

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="needs SGLang on its CPU engine"
)

FAMILIES = {
    "state slots": 120,
    "tokens": 60,
    "state pools": 750,
    "KV pools": 36,
    "slots a request": 22,
    "strategies": 32,
    "admitted requests": 350,
    "budgets": 16,
    "prefill passes": 8,
}
"""Least number of settings in each."""


@pytest.fixture(scope="module")
def families():
    """Every comparison, by family."""
    standins = repository.PACKAGE / "cpu_engine" / "standins"
    path = os.pathsep.join(map(str, (standins, repository.ROOT)))
    program = repository.ROOT / "tests/pools/plan/compare_with_stock.py"
    done = subprocess.run(
        [sys.executable, str(program), str(models.REAL)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULTS "))
    return json.loads(line.removeprefix("RESULTS "))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_formula_equals_stock(family, families):
    rows = families[family]
    different = [
        f"{label}: stock {stock}, ours {ours}" for label, stock, ours in rows if stock != ours
    ]
    assert not different, "\n".join(different[:20])
    assert len(rows) >= FAMILIES[family]
    # A grid on which nothing varies would compare nothing.
    assert len({json.dumps(stock) for _, stock, _ in rows}) >= min(4, len(rows) // 3)


def test_every_comparison_has_a_family(families):
    assert set(families) == set(FAMILIES)


def test_the_factor_on_the_memory_fraction_is_stocks():
    tree = importlib.util.find_spec("sglang").submodule_search_locations[0]
    with open(f"{tree}/srt/server_args.py", encoding="utf-8") as file:
        source = file.read()
    [found] = re.findall(
        r'attention_backend == "aiter":\s+if model_config\.context_len > (\d+):\s+'
        r"self\.mem_fraction_static \*= ([\d.]+)",
        source,
    )
    assert found == (str(pool_sizes.AITER_CONTEXT_TOKENS), str(pool_sizes.AITER_FRACTION))
