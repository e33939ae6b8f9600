"""MirroredStrategy of TensorFlow, as docs/guide/scale.md shows it, with two devices made of one processor."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="a strategy of TensorFlow"),
]
PROGRAM = """
import json, os, sys
os.environ["KERAS_BACKEND"] = "tensorflow"
import numpy as np
import tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
import cellerate

def losses(devices, accelerated):
    keras.utils.set_random_seed(3)
    with tf.distribute.MirroredStrategy(devices).scope():
        layers = [keras.layers.LSTM(8, return_sequences=True), keras.layers.LSTM(8), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((20, 3)), *layers])
        if accelerated:
            cellerate.accelerate(model)
        model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(64, 20, 3)).astype(np.float32)
    y = x.sum(axis=(1, 2))[:, None]
    return model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"]

two = ["CPU:0", "CPU:1"]
print(json.dumps([losses(two, True), losses(two, False), losses(two[:1], False)]))
"""


def test_two_devices_of_a_mirrored_strategy_give_stock_losses():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    ours, stock, one_device = json.loads(done.stdout.splitlines()[-1])
    assert ours[-1] < ours[0]
    np.testing.assert_allclose(ours, stock, rtol=1e-4)
    np.testing.assert_allclose(ours, one_device, rtol=1e-4)
