"""The LSTM layer on an NVIDIA GPU for JAX: XLA computes the products over all steps, Cellerate the recurrence.

`bridges.jax` makes the layer part of a JAX program; this module is what it does on a GPU.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cellerate.kernels import native
from cellerate.kernels.cuda import launch
from cellerate.kernels.cuda.kernel import clusters
from cellerate.kernels.lstm.cuda import select
from cellerate.kernels.lstm.cuda.arguments import BackwardArguments, ForwardArguments
from cellerate.kernels.lstm.cuda.arrays import gates_first, gates_last
from cellerate.kernels.lstm.cuda.layer import LayerCall, Results
from cellerate.kernels.lstm.cuda.plan import Direction, Variant

Arrays = Mapping[str, Any]
_TARGET = "cellerate_launch"


class Call(LayerCall):
    """One call of a layer in JAX."""

    @property
    def precision(self) -> str:
        """The precision in which the kernels compute."""
        return precision_of(self.dtype)

    @property
    def device(self) -> int:
        """The GPU's number."""
        return gpu_number(*self.given.values())

    def walked(self, name: str) -> Any:
        """An argument with a time axis, in the order in which the layer walks time; None if it is absent."""
        found = self.given.get(name)
        return jnp.flip(found, 1) if found is not None and self.options.go_backwards else found


def precision_of(dtype: Any) -> str:
    """The precision in which the kernels compute a dtype: "tf32" for float32 if JAX's products use TF32."""
    return "tf32" if dtype == jnp.float32 and _tf32() else str(dtype)


def _tf32() -> bool:
    return jax.config.jax_default_matmul_precision in ("tensorfloat32", "TF32_TF32_F32")


def gpu(*arrays: Any) -> Any:
    """The GPU on which JAX runs a computation with these arrays, a `jax.Device`; None if there is none.

    That is the device on which an array was put explicitly (`jax.device_put`), else the default device: JAX moves all
    other arrays there, and traced arrays have no device yet.
    """
    for array in arrays:
        if not isinstance(array, jax.core.Tracer) and getattr(array, "committed", False):
            found = [each for each in array.devices() if each.platform == "gpu"]
            if found:
                # The GPUs that share an array are of the same kind and use the same kernel.
                return min(found, key=lambda each: each.local_hardware_id)
    default = jax.config.jax_default_device
    # It may also be the name of a platform.
    devices = jax.local_devices() if default is None or isinstance(default, str) else [default]
    return next((each for each in devices if each.platform == "gpu"), None)


def gpu_number(*arrays: Any) -> int:
    """CUDA's number of that GPU; 0 without one. It may differ from JAX's: a process may be given other GPUs."""
    found = gpu(*arrays)
    return 0 if found is None else found.local_hardware_id


@functools.cache
def register() -> None:
    """Makes the kernels known to XLA."""
    jax.ffi.register_ffi_target(_TARGET, native.core().xla_launch(), platform="CUDA")


def forward(call: Call, *, keep: bool) -> dict[str, Any]:
    """Runs a layer.

    Args:
        call: The layer and its arguments.
        keep: Whether `backward` will follow.

    Returns:
        outputs (B, T, H) or (B, H), h_T and c_T (B, H); with `keep` also what `backward` needs: gates (B, T, H, 4),
        cells (B, T, H) and, if they differ from the outputs, states (B, T, H).
    """
    batch, steps, units = call.shape
    dtype, given = call.dtype, call.given
    kernel = gates_last(given["kernel"], units).astype(dtype)
    ids, x = call.walked("ids"), call.walked("x")
    if ids is not None:
        projected = _product(given["embeddings"].astype(dtype), kernel, dtype)
    elif "dropout" in given:
        parts = [
            _product((x * scale[:, None]).astype(dtype), kernel[:, gate::4], dtype)
            for gate, scale in enumerate(given["dropout"])
        ]
        projected = jnp.stack(parts, -1).reshape(batch, steps, 4 * units)
    else:
        projected = _product(x, kernel, dtype)
    if "bias" in given:
        projected = projected + gates_last(given["bias"], units).astype(dtype)
    inputs = {"projected": projected, "ids": ids, "h0": given["h0"]}
    results = call.plan.forward_results() | (call.plan.kept() if keep else {})
    found = _run(call, "forward", ForwardArguments, inputs, results, vocabulary=projected.shape[0])
    found["c_T"] = found["c_T"].astype(dtype)
    if not call.return_sequences:
        found["outputs"] = found.pop("last_output")
    return found


def backward(call: Call, done: Arrays, d_outputs: Any, d_h_T: Any, d_c_T: Any) -> dict[str, Any]:
    """The gradients of a layer.

    Args:
        call: The call that `forward` got.
        done: What `forward` returned, with what it kept.
        d_outputs: The cotangent of the outputs.
        d_h_T: The cotangent of h_T.
        d_c_T: The cotangent of c_T.

    Returns:
        The gradient of each given argument, by its name: x or embeddings, kernel, recurrent_kernel, bias, h0, c0; of
        the argument's type.
    """
    batch, steps, units = call.shape
    dtype, given = call.dtype, call.given
    inputs = {
        "gates": done["gates"],
        "cells": done["cells"],
        f"d_{call.plan.outputs}": d_outputs.astype(dtype),
        "d_h_T": d_h_T.astype(dtype),
        "d_c_T": d_c_T.astype(jnp.float32),
    }
    results = _run(call, "backward", BackwardArguments, inputs, call.plan.backward_results())
    d = results["d_projected"]
    found = {"h0": results["d_h0"], "c0": results["d_c0"]}
    found["recurrent_kernel"] = _d_recurrent(call, done[call.plan.h_of_steps], d)
    found |= _d_inputs(call, d.reshape(batch * steps, 4 * units))
    return {name: gradient.astype(given[name].dtype) for name, gradient in found.items() if name in given}


def _run(
    call: Call,
    direction: Direction,
    structure: type[launch.KernelArguments],
    inputs: Arrays,
    results: Results,
    **integers: int,
) -> dict[str, Any]:
    """Starts a kernel with these inputs and the ones that both directions read; returns its results by name."""
    kernel, c0 = call.plan.kernel(direction), call.given.get("c0")
    every = {
        **inputs,
        "weights": _packed(call, kernel),
        "mask": call.walked("mask"),
        "c0": None if c0 is None else c0.astype(jnp.float32),
        "recurrent_dropout": call.given.get("recurrent_dropout"),
    }
    there = {name: array for name, array in every.items() if array is not None}
    every_result = results | call.plan.exchanged(kernel)
    places = {name: n for n, name in enumerate((*there, *every_result))}
    integers |= call.plan.integers()
    names = [field[0] for field in structure._fields_]
    found = jax.ffi.ffi_call(
        _TARGET,
        [
            jax.ShapeDtypeStruct(result.shape, jnp.float32 if result.float32 else call.dtype)
            for result in every_result.values()
        ],
        vmap_method="sequential",
    )(
        *there.values(),
        kernel=_loaded(kernel, call.plan.device),
        blocks=np.int64(clusters(kernel.rows, call.shape[0]) * kernel.blocks),
        threads=np.int64(kernel.threads),
        shared=np.int64(kernel.shared_bytes),
        numbers=np.array([integers[name] for name in names if name in integers], np.int32),
        slots=np.array([places.get(name, -1) for name in names if name not in integers], np.int64),
    )
    return dict(zip(results, found, strict=False))  # but for what is exchanged


def _loaded(variant: Variant, device: int) -> str:
    """Loads a kernel; returns the key by which programs name it, the same in every process.

    An address would differ in each process and so make each program a new one, for which JAX's compilation cache on
    disk would have no entry.
    """
    key = _key(variant, launch.gpu_name(device))
    native.core().xla_register_kernel(key, *launch.handles(variant, device))
    return key


@functools.lru_cache(maxsize=1024)
def _key(variant: Variant, gpu: str) -> str:
    digest = hashlib.sha256(f"{gpu}\n{variant.source}".encode()).hexdigest()
    return f"{variant.name}-{variant.precision}-{variant.units}-{digest[:16]}"


def _packed(call: Call, kernel: Variant) -> Any:
    """The recurrent kernel (H, 4H) in the order in which a GPU kernel reads it."""
    units, (missing, packing) = call.shape[2], call.plan.packing(kernel)
    weights = call.given["recurrent_kernel"].astype(call.dtype).reshape(units, 4, units)
    padded = jnp.pad(weights, ((0, missing), (0, 0), (0, missing)))
    return padded.reshape(packing.shape).transpose(packing.axes)


def _product(a: Any, b: Any, dtype: Any = jnp.float32) -> Any:
    """a·b summed in float32 for any dtype; float32 is multiplied in full precision unless TF32 is set."""
    precision = None if _tf32() else jax.lax.Precision.HIGHEST
    found = jnp.matmul(a, b, precision=precision, preferred_element_type=jnp.float32)
    return found.astype(dtype)


def _d_recurrent(call: Call, states: Any, d: Any) -> Any:
    """The gradient of the recurrent kernel, (H, 4H): the sum over steps of the previous h times the step's gradient."""
    batch, steps, units = call.shape
    before = jnp.concatenate([call.given["h0"][:, None], states[:, :-1]], 1)
    dropout = call.given.get("recurrent_dropout")
    if dropout is None:
        rows = before.reshape(batch * steps, units)
        return gates_first(_product(rows.T, d.reshape(batch * steps, 4 * units)), units)
    parts = []
    for gate, scale in enumerate(dropout):
        rows = (before * scale[:, None]).astype(before.dtype).reshape(batch * steps, units)
        parts.append(_product(rows.T, d[..., gate].reshape(batch * steps, units)))
    return jnp.concatenate(parts, 1)


def _d_inputs(call: Call, d: Any) -> dict[str, Any]:
    """The gradients of the input projection: x or embeddings, kernel and bias."""
    batch, steps, units = call.shape
    given = call.given
    if "ids" in given:
        d_table = _d_table(call.walked("ids").reshape(-1), d, given["embeddings"].shape[0])
        kernel = gates_last(given["kernel"], units)
        return {
            "embeddings": _product(d_table, kernel.T),
            "kernel": gates_first(_product(given["embeddings"].T, d_table), units),
            "bias": gates_first(d_table.sum(0), units),
        }
    x = call.walked("x")
    kernel = gates_last(given["kernel"], units).astype(call.dtype)
    found = {"bias": gates_first(d.astype(jnp.float32).sum(0), units)}
    if "dropout" not in given:
        found["kernel"] = gates_first(_product(x.reshape(batch * steps, -1).T, d), units)
        d_x = _product(d, kernel.T).reshape(x.shape)
    else:
        parts, d_x = [], jnp.zeros(x.shape, jnp.float32)
        for gate, scale in enumerate(given["dropout"]):
            one = d[:, gate::4]
            rows = (x * scale[:, None]).astype(x.dtype).reshape(batch * steps, -1)
            parts.append(_product(rows.T, one))
            d_x += _product(one, kernel[:, gate::4].T).reshape(x.shape) * scale[:, None]
        found["kernel"] = jnp.concatenate(parts, 1)
    found["x"] = jnp.flip(d_x, 1) if call.options.go_backwards else d_x
    return found


def _d_table(ids: Any, d: Any, count: int) -> Any:
    """The gradient of the table embeddings·kernel (V, 4H): for each id the sum of d (B·T, 4H) over its places."""
    if count <= select.MOST_ONES:
        ones = ids == jnp.arange(count)[:, None]
        return _product(ones.astype(d.dtype), d)
    d_table = jnp.zeros((count, d.shape[1]), jnp.float32)
    return d_table.at[ids].add(d.astype(jnp.float32))
