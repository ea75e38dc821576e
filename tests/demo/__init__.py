"""The walk that `sglang-mi300a demo` takes."""
