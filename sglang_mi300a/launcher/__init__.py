"""Kernels from code objects: how they are built, loaded, launched, and seen by torch.

``toolchain`` and ``native_build`` compile; ``binding`` reaches the C core (``csrc/launcher``);
``signature`` says what a kernel's arguments must be; ``kernels`` loads and launches; ``operators``
makes torch operators of functions that launch. Nothing is imported here: a build has no torch.
"""
