"""What every test session needs: nothing of the user's environment, and the same run twice."""

import os

# Before numpy or torch is imported: small matrices on shared cores are faster on one thread.
os.environ["OMP_NUM_THREADS"] = "1"
# No test may reach for a model over the network.
os.environ["HF_HUB_OFFLINE"] = "1"
# What the user's shell sets for serving is not for tests.
for name in [name for name in os.environ if name.startswith("SGLANG_")]:
    del os.environ[name]

import hypothesis  # noqa: E402 - the environment comes first

# derandomize: a failure comes back on the next run. No deadline: the cores are shared.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")
