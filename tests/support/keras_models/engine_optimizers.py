"""The optimizers that models of the engine are trained with."""

from collections.abc import Callable

import keras

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum, clipnorm": lambda: keras.optimizers.SGD(0.02, momentum=0.9, clipnorm=0.05),
    "nesterov, global clipnorm": lambda: keras.optimizers.SGD(
        0.02, momentum=0.9, nesterov=True, global_clipnorm=0.05
    ),
    "adam": lambda: keras.optimizers.Adam(0.003),
    "amsgrad, clipvalue": lambda: keras.optimizers.Adam(0.003, amsgrad=True, clipvalue=0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.003, weight_decay=0.1),
    "rmsprop, centered, schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.003, 3, 0.9), momentum=0.5, centered=True
    ),
    "rmsprop, clipnorm": lambda: keras.optimizers.RMSprop(0.003, clipnorm=0.05),
    "nadam, global clipnorm": lambda: keras.optimizers.Nadam(0.003, global_clipnorm=0.05),
    "lion": lambda: keras.optimizers.Lion(0.0005),
    "accumulation": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.003, 3, 0.9),
        gradient_accumulation_steps=2,
        clipnorm=0.05,
    ),
    "average": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8),
    "average that is taken": lambda: keras.optimizers.Adam(
        0.003, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "adagrad": lambda: keras.optimizers.Adagrad(0.01, weight_decay=0.05),
    "adamax, global clipnorm": lambda: keras.optimizers.Adamax(0.01, weight_decay=0.05, global_clipnorm=0.05),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5, rho=0.9, clipnorm=0.05),
    "adadelta, average": lambda: keras.optimizers.Adadelta(
        keras.optimizers.schedules.ExponentialDecay(0.5, 3, 0.9), use_ema=True, ema_momentum=0.8
    ),
    # Roots of a larger first sum of squares differ by less than they are rounded.
    "ftrl": lambda: keras.optimizers.Ftrl(0.05, initial_accumulator_value=0.0, beta=0.1),
    "ftrl, all": lambda: keras.optimizers.Ftrl(
        0.02,
        learning_rate_power=-0.6,
        l1_regularization_strength=0.001,
        l2_regularization_strength=0.01,
        l2_shrinkage_regularization_strength=0.01,
        beta=0.1,
        gradient_accumulation_steps=2,
    ),
}
