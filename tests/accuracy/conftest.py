"""A small MXFP4 model, its twin and the bf16 model, made once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_mi300a.tiny_model import DENSE, MOE_BF16, MOE_MXFP4, dequantised_twin, make_tiny_model


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return checkpoint folders by kind, and ``twin``."""
    folder = tmp_path_factory.mktemp("checkpoints")
    made = {
        kind: make_tiny_model(folder / kind, kind=kind).path
        for kind in (DENSE, MOE_BF16, MOE_MXFP4)
    }
    made["twin"] = dequantised_twin(made[MOE_MXFP4], folder / "twin")
    return made
