"""Models made once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_mi300a.tiny_model import DENSE, MOE_BF16, MOE_MXFP4, dequantised_twin, make_tiny_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return checkpoint folders by what they are: each kind, ``echo``, ``visual``, ``twin``."""
    folder = tmp_path_factory.mktemp("tiny_models")
    made = {kind: make_tiny_model(folder / kind, kind=kind).path for kind in (DENSE, MOE_BF16)}
    made[MOE_MXFP4] = make_tiny_model(folder / MOE_MXFP4, kind=MOE_MXFP4).path
    made["echo"] = make_tiny_model(folder / "echo", kind=MOE_MXFP4, echo=True).path
    made["visual"] = make_tiny_model(folder / "visual", kind=MOE_MXFP4, visual=True).path
    made["twin"] = dequantised_twin(made[MOE_MXFP4], folder / "twin")
    return made
