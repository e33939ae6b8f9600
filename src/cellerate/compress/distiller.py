"""A teacher and a student as one model that Keras trains: Keras's `Distiller`, and what it lacks.

A module of its own because `distill` only decides what is trained; here is what is computed in a step: sample weights
and masks, probabilities as well as logits, numbers instead of classes, and a share of the teacher that changes.
"""

from typing import Any, Literal

import keras
from keras import ops

from cellerate.compress.fitting import Course

Outputs = Literal["logits", "probabilities", "values"]
"""What a model's outputs are: of classes, as logits or as probabilities; or numbers."""


class SoftLabels(keras.distillation.DistillationLoss):
    """How far a student's outputs are from a teacher's.

    In place of Keras's `LogitsDistillation`, which takes every output for logits, has neither sample weights nor
    masks, and whose gradient is 0 where the student gives a class less than 1e-7. (Its default loss is another
    one in Keras 3.15: it finds a function by that name, and hands it logits for probabilities.)

    Args:
        outputs: What both models' outputs are.
        temperature: To divide logits by.
    """

    def __init__(self, outputs: Outputs, temperature: float) -> None:
        self._loss = _Deviation() if outputs == "values" else _Divergence(outputs, temperature)

    def compute_loss(
        self, teacher_outputs: Any, student_outputs: Any, sample_weight: Any = None, **_: Any
    ) -> Any:
        """The mean over rows and steps.

        Args:
            teacher_outputs: (B, ..., V) floats.
            student_outputs: Of the same shape; a mask that it has is heeded.
            sample_weight: As for a loss of Keras's.

        Returns:
            A scalar.
        """
        return self._loss(ops.stop_gradient(teacher_outputs), student_outputs, sample_weight)


class _Divergence(keras.losses.Loss):
    """KL(teacher || student) of probabilities softened by a temperature, times its square: (B, ..., V) → (B, ...)."""

    def __init__(self, outputs: Outputs, temperature: float) -> None:
        super().__init__(name="divergence")
        self._outputs, self._temperature = outputs, temperature

    def call(self, y_true: Any, y_pred: Any) -> Any:
        log_teacher, log_student = self._softened(y_true), self._softened(y_pred)
        divergence = ops.sum(ops.exp(log_teacher) * (log_teacher - log_student), axis=-1)
        return divergence * self._temperature**2

    def _softened(self, outputs: Any) -> Any:
        # The logarithms of probabilities are logits of theirs.
        logits = logits_of(outputs) if self._outputs == "probabilities" else outputs
        return ops.log_softmax(logits / self._temperature, axis=-1)


class _Deviation(keras.losses.Loss):
    """The squared difference, averaged but for rows and steps, as losses of forecasts and quantiles are."""

    def __init__(self) -> None:
        super().__init__(name="deviation")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        rank = len(y_pred.shape)
        return ops.mean(ops.square(y_pred - y_true), axis=tuple(range(min(2, rank - 1), rank)))


class Distiller(keras.distillation.Distiller):
    """Keras's Distiller, its true labels weighted, masked and regularised as in the training of any model.

    Args:
        teacher: Built, its output float32; it is made untrainable.
        student: The same, to be trained.
        soft: The soft loss.
        shares: That of the soft loss at the first step of the course, and that towards which it goes.
        course: Of the training: between two steps the share follows it.

    Attributes:
        hard_losses: Of the true labels, at each step; empty where they never have a share.
        soft_losses: Of the teacher's, the same.
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
        # A loss that never has a share is not computed: its labels may be of no use at all.
        self._has_hard, self._has_soft = min(shares) < 1, max(shares) > 0
        # A variable, for it changes from step to step of one compiled function.
        self._share = self.add_weight(
            shape=(), dtype="float32", initializer="zeros", trainable=False, name="share"
        )

    def compile(self, optimizer: Any = "adam", loss: Any = None, **arguments: Any) -> None:
        """Compiles like any model; Keras's own way leaves the loss out."""
        keras.Model.compile(self, optimizer=optimizer, loss=loss, **arguments)

    def train_on_batch(self, *arguments: Any, **named: Any) -> Any:
        """A step, with the share of the soft loss that the course has come to."""
        first, last = self._shares
        self._share.assign(last + (first - last) * self._course.rate)
        found = super().train_on_batch(*arguments, **named)
        # Keras forgets its means before each batch: they are those of this step.
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
        """The two losses, each by its share; regularisers count in full."""
        share = ops.convert_to_tensor(self._share)
        total = 0.0
        if self._has_hard:
            hard = keras.Model.compute_loss(self, x, y, y_pred, sample_weight, training)
            self.student_loss_tracker.update_state(hard)
            total = (1.0 - share) * hard
        if self._has_soft:
            # Before the teacher runs, which may have such losses, too.
            regularisers = sum(map(ops.sum, self.losses))
            (soft_labels,) = self.distillation_losses
            soft = soft_labels.compute_loss(self.teacher(x, training=False), y_pred, sample_weight)
            self.distillation_loss_tracker.update_state(soft)
            total = total + share * (soft + regularisers)
        return total


def logits_of(probabilities: Any) -> Any:
    """Logits of probabilities, those of nothing bounded as in Keras's own losses."""
    return ops.log(ops.maximum(probabilities, keras.config.epsilon()))
