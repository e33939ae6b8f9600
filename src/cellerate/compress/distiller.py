"""A teacher and a student as one model that Keras can train.

It extends Keras's `Distiller` with sample weights and masks, probabilities as well as logits, numbers instead
of classes, and a teacher's share that changes during training. `distill` decides what is trained.
"""

from __future__ import annotations

from typing import Any, Literal

import keras
from keras import ops

from cellerate.compress.fitting import Course

Outputs = Literal["logits", "probabilities", "values"]
"""The kinds of a model's outputs: logits or probabilities of classes, or numbers."""


class SoftLabels(keras.distillation.DistillationLoss):
    """The distance of a student's outputs from a teacher's.

    It replaces Keras's `LogitsDistillation`, which takes every output for logits, ignores sample weights and
    masks, and has a gradient of 0 where the student gives a class less than 1e-7. (In Keras 3.15 its default
    loss is also wrong: Keras looks up a function by that name and passes it logits as probabilities.)

    Args:
        outputs: The kind of both models' outputs.
        temperature: The number to divide logits by.
    """

    def __init__(self, outputs: Outputs, temperature: float) -> None:
        self._loss = _Deviation() if outputs == "values" else _Divergence(outputs, temperature)

    def compute_loss(
        self, teacher_outputs: Any, student_outputs: Any, sample_weight: Any = None, **_: Any
    ) -> Any:
        """Gives the mean over rows and steps.

        Args:
            teacher_outputs: (B, ..., V) floats.
            student_outputs: Floats of the same shape; a Keras mask on it is applied.
            sample_weight: As for any Keras loss.

        Returns:
            A scalar.
        """
        return self._loss(ops.stop_gradient(teacher_outputs), student_outputs, sample_weight)


class _Divergence(keras.losses.Loss):
    """KL(teacher || student) of softened probabilities, times the temperature squared: (B, ..., V) → (B, ...)."""

    def __init__(self, outputs: Outputs, temperature: float) -> None:
        super().__init__(name="divergence")
        self._outputs, self._temperature = outputs, temperature

    def call(self, y_true: Any, y_pred: Any) -> Any:
        log_teacher, log_student = self._softened(y_true), self._softened(y_pred)
        divergence = ops.sum(ops.exp(log_teacher) * (log_teacher - log_student), axis=-1)
        return divergence * self._temperature**2

    def _softened(self, outputs: Any) -> Any:
        # Logarithms of probabilities serve as logits.
        logits = logits_of(outputs) if self._outputs == "probabilities" else outputs
        return ops.log_softmax(logits / self._temperature, axis=-1)


class _Deviation(keras.losses.Loss):
    """The squared difference, averaged over all axes but rows and steps, as forecast and quantile losses are."""

    def __init__(self) -> None:
        super().__init__(name="deviation")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        rank = len(y_pred.shape)
        return ops.mean(ops.square(y_pred - y_true), axis=tuple(range(min(2, rank - 1), rank)))


class Distiller(keras.distillation.Distiller):
    """Keras's Distiller, with true labels weighted, masked and regularised as in ordinary training.

    Args:
        teacher: A built model with float32 output; it is made untrainable.
        student: The model to train; also built, with float32 output.
        soft: The soft loss.
        shares: The share of the soft loss at the first step of the course, and the share it moves towards.
        course: The course of the training; the share follows it from step to step.

    Attributes:
        hard_losses: The loss on the true labels at each step; empty if its share is always 0.
        soft_losses: The loss on the teacher's outputs at each step; empty if its share is always 0.
    """

    def __init__(
        self,
        teacher: keras.Model,
        student: keras.Model,
        soft: SoftLabels,
        shares: tuple[float, float],
        course: Course,
    ) -> None:
        super().__init__(teacher, student, soft)
        self.hard_losses: list[float] = []
        self.soft_losses: list[float] = []
        self._shares, self._course = shares, course
        # A loss whose share is always 0 is not computed: its labels may be of no use at all.
        self._has_hard, self._has_soft = min(shares) < 1, max(shares) > 0
        # A variable, because it changes from step to step within one compiled function.
        self._share = self.add_weight(
            shape=(), dtype="float32", initializer="zeros", trainable=False, name="share"
        )

    def compile(self, optimizer: Any = "adam", loss: Any = None, **arguments: Any) -> None:
        """Compiles like any model; Keras's own Distiller leaves the loss out."""
        keras.Model.compile(self, optimizer=optimizer, loss=loss, **arguments)

    def train_on_batch(self, *arguments: Any, **named: Any) -> Any:
        """Trains one step with the share of the soft loss that the course has reached."""
        first, last = self._shares
        self._share.assign(last + (first - last) * self._course.rate)
        found = super().train_on_batch(*arguments, **named)
        # Keras resets its means before each batch, so they are those of this step.
        if self._has_hard:
            self.hard_losses.append(float(ops.convert_to_numpy(self.student_loss_tracker.result())))
        if self._has_soft:
            self.soft_losses.append(float(ops.convert_to_numpy(self.distillation_loss_tracker.result())))
        return found

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Adds the two losses, each multiplied by its share, and all regularisation losses in full."""
        share = ops.convert_to_tensor(self._share)
        total = 0.0
        if self._has_hard:
            hard = keras.Model.compute_loss(self, x, y, y_pred, sample_weight, training)
            self.student_loss_tracker.update_state(hard)
            total = (1.0 - share) * hard
        if self._has_soft:
            # Before the teacher runs: it may add regularisation losses of its own.
            regularisers = sum(map(ops.sum, self.losses))
            (soft_labels,) = self.distillation_losses
            soft = soft_labels.compute_loss(self.teacher(x, training=False), y_pred, sample_weight)
            self.distillation_loss_tracker.update_state(soft)
            total = total + share * (soft + regularisers)
        return total


def logits_of(probabilities: Any) -> Any:
    """Gives the logits of probabilities, bounding those near 0 as Keras's own losses do."""
    return ops.log(ops.maximum(probabilities, keras.config.epsilon()))
