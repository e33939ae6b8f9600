"""torch.nn.LSTM as `bench` sets Cellerate beside it: the same character model in plain torch, trained and in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

Loss = Callable[[np.ndarray, np.ndarray], float]
# Of Adam, Keras's.
_VELOCITY = 0.999


class CharacterModel(torch.nn.Module):
    """Embedding → LSTM → Linear.

    Args:
        weights: In Keras's order and layout: table (V, D), kernel (D, 4H), recurrent_kernel (H, 4H), bias (4H,),
            head (H, V), its bias (V,).
    """

    def __init__(self, weights: Sequence[np.ndarray]) -> None:
        super().__init__()
        table, kernel, recurrent_kernel, bias, head, head_bias = weights
        H = len(recurrent_kernel)
        self.embedding = torch.nn.Embedding(*table.shape)
        self.lstm = torch.nn.LSTM(table.shape[1], H, batch_first=True)
        self.head = torch.nn.Linear(*head.shape)
        given = (
            (self.embedding.weight, table),
            (self.lstm.weight_ih_l0, kernel.T),
            (self.lstm.weight_hh_l0, recurrent_kernel.T),
            (self.lstm.bias_ih_l0, bias),
            (self.lstm.bias_hh_l0, np.zeros_like(bias)),
            (self.head.weight, head.T),
            (self.head.bias, head_bias),
        )
        with torch.no_grad():
            for parameter, array in given:
                parameter.copy_(torch.tensor(np.ascontiguousarray(array)))
        # Keras has one bias; the other one stays at zero.
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(
        self, ids: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Ids (B, T) and h, c (1, B, H) each → logits (B, T, V) and the state after them."""
        outputs, state = self.lstm(self.embedding(ids), state)
        return self.head(outputs), state


def training_step(weights: Sequence[np.ndarray], rate: float, epsilon: float) -> Loss:
    """A step of a plain loop: forward, backward, fused Adam as Keras has it, and the loss as a Python number.

    Args:
        weights: As `CharacterModel` takes them.
        rate: The learning rate.
        epsilon: Adam's, as Keras means it.

    Returns:
        ids and targets, (B, T) int32 each → the mean loss of the batch before the step.
    """
    model = CharacterModel(weights)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=rate, fused=True)
    loss_of = torch.nn.CrossEntropyLoss()
    taken = 0

    def step(ids: np.ndarray, targets: np.ndarray) -> float:
        nonlocal taken
        logits, _ = model(torch.from_numpy(ids))
        loss = loss_of(logits.flatten(0, 1), torch.from_numpy(targets).long().flatten())
        optimizer.zero_grad()
        loss.backward()
        taken += 1
        # Keras adds its epsilon before it corrects for the zeros that Adam starts from.
        optimizer.param_groups[0]["eps"] = epsilon / (1 - _VELOCITY**taken) ** 0.5
        optimizer.step()
        return float(loss.item())

    return step


def predictor(weights: Sequence[np.ndarray], threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """The inference of the model: ids (B, T) int32 → logits (B, T, V) float32, without gradients."""
    model = CharacterModel(weights).eval()

    def predict(ids: np.ndarray) -> np.ndarray:
        _take_threads(threads)
        with torch.inference_mode():
            return model(torch.from_numpy(ids))[0].numpy()

    return predict


def stepper(
    weights: Sequence[np.ndarray], threads: int
) -> Callable[[np.ndarray, Sequence[torch.Tensor] | None], tuple[np.ndarray, Sequence[torch.Tensor]]]:
    """The model a character at a time: ids (1, 1) int32 and its state, None at the start → logits (1, V), state."""
    model = CharacterModel(weights).eval()

    def step(
        ids: np.ndarray, state: Sequence[torch.Tensor] | None
    ) -> tuple[np.ndarray, Sequence[torch.Tensor]]:
        _take_threads(threads)
        with torch.inference_mode():
            logits, after = model(torch.from_numpy(ids), state)
            return logits[0].numpy(), after

    return step


def _take_threads(count: int) -> None:
    # To set the number takes longer than to ask for it.
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
