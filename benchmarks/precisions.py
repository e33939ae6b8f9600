"""The precisions that cases measure and tables show."""

PRECISIONS = ("float32", "bfloat16", "int8")
"""The precisions of `cellerate.program` except int4, which no case measures."""
