"""The slopes of activations where they have no derivative, which differ between backends."""

from __future__ import annotations

import dataclasses

import keras

from cellerate.activations import on_backend
from cellerate.program import NORMALIZERS, Node


def with_slopes_of_backend(node: Node) -> Node:
    """A node of a training step whose activations are those of the running backend, to the last single point."""
    changed = {
        name: on_backend(str(node.options[name]), keras.config.backend())
        for name in ("activation", "recurrent_activation")
        if node.options.get(name) not in (None, *NORMALIZERS)
    }
    return dataclasses.replace(node, options={**node.options, **changed}) if changed else node
