"""The walk through the product that ``sglang-mi300a demo`` takes, a module a step."""
