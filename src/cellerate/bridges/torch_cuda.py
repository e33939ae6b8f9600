"""The LSTM layer on an NVIDIA GPU for torch: torch computes the products over all steps, Cellerate the recurrence.

`torch_operators` defines the operators; this module is what they do on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from cellerate.kernels.cuda import launch
from cellerate.kernels.lstm.cuda import select
from cellerate.kernels.lstm.cuda.arguments import BackwardArguments, ForwardArguments
from cellerate.kernels.lstm.cuda.arrays import gates_first, gates_last
from cellerate.kernels.lstm.cuda.layer import LayerCall, Result, Results
from cellerate.kernels.lstm.cuda.plan import Direction, Variant

Tensors = Mapping[str, torch.Tensor | None]


class Call(LayerCall):
    """One call of a layer in torch."""

    def __getitem__(self, name: str) -> torch.Tensor | None:
        return self.given.get(name)

    def need(self, name: str) -> torch.Tensor:
        """An argument that must be there, contiguous."""
        return self.there(name).detach().contiguous()

    def there(self, name: str) -> torch.Tensor:
        """An argument that must be there."""
        found = self.given[name]
        assert found is not None  # noqa: S101 (the caller has checked)
        return found

    def walked(self, name: str) -> torch.Tensor | None:
        """An argument with a time axis, in the order in which the layer walks time."""
        found = self[name]
        if found is None:
            return None
        found = found.detach()
        return (found.flip(1) if self.options.go_backwards else found).contiguous()

    @property
    def precision(self) -> str:
        """The precision in which the kernels compute."""
        return precision_of(self.dtype)

    @property
    def device(self) -> int:
        """The GPU's number."""
        return max(0, int(self.there("h0").get_device()))


def precision_of(dtype: torch.dtype) -> str:
    """The precision in which the kernels compute a dtype: "tf32" for float32 if torch's products may use TF32."""
    name = str(dtype).removeprefix("torch.")
    allowed = name == "float32" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if allowed else name


def forward_results(
    call: Call, *, keep: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Empty tensors with the shapes and types of what `forward` returns."""
    like = call.there("h0")
    outputs, h_T, c_T = (like.new_empty(result.shape) for result in call.plan.forward_results().values())
    return outputs, h_T, c_T, _reserve(call, keep=keep)


def forward(call: Call, *, keep: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs a layer.

    Args:
        call: The layer and its arguments.
        keep: Whether `backward` will follow.

    Returns:
        outputs (B, T, H) or (B, H), h_T and c_T (B, H), and the bytes that `backward` needs; none without `keep`.
    """
    units = call.shape[2]
    kernel, bias = gates_last(call.need("kernel"), units).to(call.dtype), _bias(call)
    ids = call.walked("ids")
    x = call.walked("x") if ids is None else None
    if ids is not None:
        projected = _projected(call.need("embeddings").to(call.dtype), kernel, bias)
    elif (dropout := call["dropout"]) is not None:
        assert x is not None  # noqa: S101 (there are no ids)
        parts = [(x * scale.unsqueeze(1)).to(x.dtype) @ kernel[:, n::4] for n, scale in enumerate(dropout)]
        projected = torch.stack(parts, dim=-1).flatten(-2)
        projected = projected if bias is None else projected + bias
    else:
        assert x is not None  # noqa: S101 (there are no ids)
        projected = _projected(x.flatten(0, 1), kernel, bias)
    plan, reserve = call.plan, _reserve(call, keep=keep)
    results = _empty(call, plan.forward_results())
    vocabulary = 0 if ids is None else projected.shape[0]
    inputs = {"projected": projected.contiguous(), "ids": ids, "h0": call.need("h0")}
    kept = _kept(call, reserve) if keep else {}
    _run(call, "forward", ForwardArguments(vocabulary=vocabulary), inputs | kept | results)
    return results[plan.outputs], results["h_T"], results["c_T"].to(call.dtype), reserve


def backward(
    call: Call,
    outputs: torch.Tensor,
    reserve: torch.Tensor,
    d_outputs: torch.Tensor | None,
    d_h_T: torch.Tensor | None,
    d_c_T: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """The gradients of a layer.

    Args:
        call: The call that `forward` got.
        outputs: The outputs of `forward`.
        reserve: The bytes that `forward` kept.
        d_outputs: The cotangent of the outputs; None for zeros, as for the other two.
        d_h_T: The cotangent of h_T.
        d_c_T: The cotangent of c_T.

    Returns:
        The gradient of each given argument, by its name: x or else embeddings, kernel, recurrent_kernel, bias, h0, c0;
        of the argument's type.
    """
    plan, dtype = call.plan, call.dtype
    kept, results = _kept(call, reserve), _empty(call, plan.backward_results())
    cotangents = {
        f"d_{plan.outputs}": (d_outputs, dtype),
        "d_h_T": (d_h_T, dtype),
        "d_c_T": (d_c_T, torch.float32),
    }
    inputs = {
        name: None if d is None else d.detach().to(dtype).contiguous()
        for name, (d, dtype) in cotangents.items()
    }
    states = kept.pop("states", outputs)
    _run(call, "backward", BackwardArguments(), inputs | kept | results)
    d_projected = results["d_projected"]
    found = {"h0": results["d_h0"], "c0": results["d_c0"]}
    found["recurrent_kernel"] = _d_recurrent(call, states, d_projected)
    found |= _d_inputs(call, d_projected)
    return {
        name: gradient.to(argument.dtype)
        for name, gradient in found.items()
        if (argument := call[name]) is not None
    }


def _run(call: Call, direction: Direction, arguments: launch.KernelArguments, tensors: Tensors) -> None:
    """Starts a kernel with these tensors and the ones that both directions read."""
    kernel = call.plan.kernel(direction)
    c0, dropout = call["c0"], call["recurrent_dropout"]
    # They must live until the kernel is in the stream; then torch reuses their memory only for later work there.
    held = {
        **tensors,
        **_empty(call, call.plan.exchanged(kernel)),
        "weights": _packed(call, kernel),
        "mask": call.walked("mask"),
        "c0": None if c0 is None else c0.detach().to(torch.float32).contiguous(),
        "recurrent_dropout": None if dropout is None else dropout.detach().contiguous(),
    }
    for name, number in call.plan.integers().items():
        setattr(arguments, name, number)
    for name, tensor in held.items():
        setattr(arguments, name, None if tensor is None else tensor.data_ptr())
    h0 = call.there("h0")
    stream = torch.cuda.current_stream(h0.device).cuda_stream if h0.is_cuda else 0
    launch.launch(kernel, arguments, call.plan.device, stream)


def _empty(call: Call, results: Results) -> dict[str, torch.Tensor]:
    like = call.there("h0")
    return {
        name: like.new_empty(result.shape, dtype=_dtype(call, result)) for name, result in results.items()
    }


def _dtype(call: Call, result: Result) -> torch.dtype:
    return torch.float32 if result.float32 else call.dtype


def _reserve(call: Call, *, keep: bool) -> torch.Tensor:
    """Room for what forward keeps for backward, as one tensor of bytes."""
    sizes = [math.prod(kept.shape) * _dtype(call, kept).itemsize for kept in call.plan.kept().values()]
    return call.there("h0").new_empty(sum(sizes) if keep else 0, dtype=torch.uint8)


def _kept(call: Call, reserve: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors in the reserve, by name."""
    found, begin = {}, 0
    for name, kept in call.plan.kept().items():
        dtype = _dtype(call, kept)
        end = begin + math.prod(kept.shape) * dtype.itemsize
        found[name] = reserve[begin:end].view(dtype).view(kept.shape)
        begin = end
    return found


def _bias(call: Call) -> torch.Tensor | None:
    bias = call["bias"]
    return None if bias is None else gates_last(bias.detach(), call.shape[2]).to(call.dtype)


def _projected(rows: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return rows @ kernel if bias is None else torch.addmm(bias, rows, kernel)


def _packed(call: Call, kernel: Variant) -> torch.Tensor:
    """The recurrent kernel (H, 4H) in the order in which a GPU kernel reads it."""
    units, (missing, packing) = call.shape[2], call.plan.packing(kernel)
    weights = call.need("recurrent_kernel").to(call.dtype).view(units, 4, units)
    padded = torch.nn.functional.pad(weights, (0, missing, 0, 0, 0, missing))
    return padded.view(packing.shape).permute(packing.axes).contiguous()


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a·b in float32, the type in which products of narrow numbers are summed anyway."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.to(torch.float32) @ b.to(torch.float32)


def _d_recurrent(call: Call, states: torch.Tensor, d_projected: torch.Tensor) -> torch.Tensor:
    """The gradient of the recurrent kernel, (H, 4H): the sum over steps of the previous h times the step's gradient."""
    units = call.shape[2]
    h0, dropout = call.need("h0"), call["recurrent_dropout"]
    if dropout is None:
        return gates_first(_shifted_product(h0, states, d_projected.flatten(2)), units)
    parts = [
        _shifted_product(
            (h0 * scale).to(h0.dtype), (states * scale.unsqueeze(1)).to(h0.dtype), d_projected[..., gate]
        )
        for gate, scale in enumerate(dropout.detach())
    ]
    return torch.cat(parts, dim=1)


def _shifted_product(h0: torch.Tensor, states: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """The sum over rows b and steps t of h[b, t-1]ᵀ · d[b, t], where h[b, -1] is h0[b].

    One product over all rows and steps, shifted by one, needs no copy of the states. At the first step of each row it
    uses the last step of the row before, and a small second product corrects that.
    """
    d = d.contiguous()
    rows, gradients = states.flatten(0, 1), d.flatten(0, 1)
    found = _product(rows[:-1].T, gradients[1:])
    first = torch.cat([h0, -states[:-1, -1]])
    return found + _product(first.T, torch.cat([d[:, 0], d[1:, 0]]))


def _d_inputs(call: Call, d_projected: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of the input projection: x or embeddings, kernel and bias."""
    units = call.shape[2]
    d = d_projected.flatten(0, 1).flatten(1)
    x, looked_up = call.walked("x"), call["ids"] is not None
    if x is None:
        return _d_table(call, d)
    kernel = gates_last(call.need("kernel"), units).to(call.dtype)
    if looked_up:
        d_x = (d @ kernel.T).view(x.shape)
        return {**_d_table(call, d), "x": d_x.flip(1) if call.options.go_backwards else d_x}
    found = {"bias": gates_first(d.sum(0, dtype=torch.float32), units)}
    dropout = call["dropout"]
    if dropout is None:
        found["kernel"] = gates_first(_product(x.flatten(0, 1).T, d), units)
        d_x = (d @ kernel.T).view(x.shape)
    else:
        parts, d_x = [], torch.zeros_like(x, dtype=torch.float32)
        for gate, scale in enumerate(dropout.detach()):
            one = d[:, gate::4].contiguous()
            parts.append(_product((x * scale.unsqueeze(1)).to(x.dtype).flatten(0, 1).T, one))
            d_x += (one @ kernel[:, gate::4].T).view(x.shape) * scale.unsqueeze(1)
        found["kernel"] = torch.cat(parts, dim=1)
    found["x"] = d_x.flip(1) if call.options.go_backwards else d_x
    return found


def _d_table(call: Call, d: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of embeddings, kernel and bias, from the gradient of the projected table (V, 4H)."""
    units = call.shape[2]
    ids, embeddings = call.walked("ids"), call.need("embeddings")
    assert ids is not None  # noqa: S101 (the caller has checked)
    rows = ids.flatten().long()
    count = embeddings.shape[0]
    if count <= select.MOST_ONES:
        ones = rows.unsqueeze(0) == torch.arange(count, device=rows.device).unsqueeze(1)
        d_table = _product(ones.to(d.dtype), d)
    else:
        d_table = d.new_zeros((count, d.shape[1]), dtype=torch.float32)
        d_table.index_add_(0, rows, d.to(torch.float32))
    kernel = gates_last(call.need("kernel"), units)
    return {
        "embeddings": d_table @ kernel.T,
        "kernel": gates_first(embeddings.T @ d_table, units),
        "bias": gates_first(d_table.sum(0), units),
    }
