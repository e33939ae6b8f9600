"""The precisions that cases measure and tables show."""

PRECISIONS = ("float32", "bfloat16", "int8")
"""Of those of `cellerate.program`; no case measures int4."""
