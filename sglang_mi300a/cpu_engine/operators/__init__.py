"""Torch references of the CPU operators that SGLang calls and its wheel does not hold.

Functions carry the names under which SGLang asks for them; ``coverage.py`` lists them. They are
written for clarity and for exactness at float32, not for speed. Accumulation is always float32;
results are rounded once, to the type that the caller gets back.
"""
