"""Programs as SavedModels, run in TensorFlow and compared with our own runtime."""

import errno
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cellerate.errors import ModelError
from cellerate.exports.trials import deviation, trials_of
from cellerate.program import MASKED_OUTPUTS, Program
from cellerate.runtime.program.engine import Engine
from support.activation_names import IN_FILES
from support.graphs import Graph, draw
from support.runtime.programs import PROGRAMS, DrawnProgram, F, H, inputs_of, moves

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's own"),
]

ERROR = 3e-6
# All that any program here may need: TensorFlow's own since its first releases of 2, none of cuDNN or XLA.
OPERATIONS = """
    Abs AddN AddV2 All Any AssignVariableOp BatchMatMulV2 BiasAdd Cast Ceil Concat ConcatV2 Const Cos Cumsum
    DisableCopyOnRead Elu Enter Equal Erf Exp ExpandDims Expm1 Fill Floor FloorDiv GatherV2 Greater
    GreaterEqual Identity LeakyRelu Less LessEqual Log Log1p LogSoftmax LogicalAnd LogicalOr MatMul Max
    Maximum Mean MergeV2Checkpoints Min Minimum Mul Neg NoOp NotEqual OnesLike Pack Pad PadV2 PartitionedCall
    Placeholder Pow Prod Range ReadVariableOp RealDiv Reciprocal Relu Relu6 Reshape ResourceGather RestoreV2
    ReverseV2 Round Rsqrt SaveV2 Select SelectV2 Selu Shape ShardedFilename Sigmoid Sign Sin Slice
    Softmax Softplus Softsign Split Sqrt Square StatefulPartitionedCall StatelessWhile StaticRegexFullMatch
    StridedSlice StringJoin Sub Sum Tanh TensorListFromTensor TensorListGetItem TensorListReserve
    TensorListSetItem TensorListStack Tile Transpose VarHandleOp While ZerosLike
"""


def written(program: Program, folder: Path, trials: Any = ()) -> Any:
    from cellerate.exports.savedmodel import SavedModel, write_saved_model

    write_saved_model({"serving_default": program}, {"serving_default": list(trials)}, {}, folder)
    return SavedModel(folder, "serving_default")


def operations_of(folder: Path) -> set[str]:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel as Proto

    proto = Proto.FromString((folder / "saved_model.pb").read_bytes())
    graphs = [meta.graph_def for meta in proto.meta_graphs]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for graph in graphs for function in graph.library.function for node in function.node_def]
    return {node.op for node in nodes}


@pytest.mark.parametrize("name", ["my-input", "a b", "a:b", "_x", "1x", "größe", "in", "class", "self"])
def test_input_of_a_name_that_tensorflow_changes_is_refused(name: str, tmp_path: Path) -> None:
    graph = Graph()
    graph.dense(graph.input(name, F), "head", F, 2)
    with pytest.raises(ModelError, match=f"TensorFlow has no input '{name}'"):
        written(graph.program(y=1), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_full_disk_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    def full(*args: Any, **kwargs: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(OSError, match="No space left") as caught:
        written(PROGRAMS["forecaster"](), tmp_path / "model")
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("name", [*PROGRAMS, "moves"])
def test_program_gives_the_same_in_tensorflow_with_operations_that_serving_has(
    name: str, tmp_path: Path
) -> None:
    program = moves() if name == "moves" else PROGRAMS[name]()
    trials = trials_of(program)
    assert deviation(trials, written(program, tmp_path / "m", trials).run).error <= ERROR
    assert operations_of(tmp_path / "m") <= set(OPERATIONS.split())


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_program_gives_the_same_in_tensorflow(data: st.DataObject, tmp_path_factory: Any) -> None:
    drawn = DrawnProgram(data)
    program = drawn.program()
    given = inputs_of(program, data.draw(st.sampled_from([1, 2, 5]), "batch"), drawn.steps)
    right = Engine(program).run(given)
    found = written(program, tmp_path_factory.mktemp("drawn") / "m").run(given)
    for name, expected in right.items():
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(found[name]), finite), name
        difference = np.abs(found[name][finite] - expected[finite])
        # As in test_onnx.py.
        assert np.all(difference <= 1e-4 * max(1, np.abs(expected[finite]).max(initial=0))), name


def test_activations_give_the_same(tmp_path: Path) -> None:
    graph = Graph()
    wide = graph.affine(graph.input("x", -1, F), "wide", F, scale=4.0, offset=0.5)
    outputs = {name: graph.dense(wide, name, F, 9, name) for name in (*IN_FILES, "softmax", "log_softmax")}
    narrow = graph.affine(wide, "narrow", F, scale=0.1, offset=0.0)
    last = graph.add("crop", "last", {"x": narrow}, begin=-2, end=None)
    # In an LSTM, too, but of small numbers and for two steps: without a limit, what rounding leaves grows. An
    # exponential of exponentials is beyond all measure.
    for name in set(IN_FILES) - {"exponential"}:
        lstm = graph.lstm(last, f"{name} lstm", F, 3, activation=name, recurrent_activation=name)
        outputs[f"{name}_lstm"] = lstm
    program = graph.program(**outputs)
    trials = [trial for trial in trials_of(program) if trial.length > 1]
    assert deviation(trials, written(program, tmp_path / "m").run).error <= ERROR


@pytest.mark.parametrize("backwards", [False, True])
def test_masked_lstm_gives_the_same_whatever_the_mask(backwards: bool, tmp_path: Path) -> None:
    graph = Graph()
    x, state = graph.input("x", -1, F), graph.input("state", H)
    mask = graph.add("features_mask", "mask", {"x": x}, mask_value=0.0)
    outputs = {}
    for kept in MASKED_OUTPUTS:
        for sequences in (False, True):
            name = f"{kept}_{sequences}"
            options = {"masked_output": kept, "return_sequences": sequences, "go_backwards": backwards}
            outputs[name] = graph.lstm(x, name, F, H, mask=mask, h0=state, c0=state, **options)
            outputs[f"{name}_c"] = graph.add("lstm_state", name, {"lstm": outputs[name]}, state="c")
    program = graph.program(**outputs)
    model = written(program, tmp_path / "m")
    given = {"x": draw(64, 6, F), "state": draw(64, H)}
    # Every mask that 6 steps can have.
    given["x"][(np.arange(64)[:, None] >> np.arange(6)) % 2 == 0] = 0
    right = Engine(program).run(given)
    for name, found in model.run(given).items():
        np.testing.assert_allclose(found, right[name], atol=2e-6, rtol=0, err_msg=name)


def test_requests_to_warm_up_with_are_logs_of_predictions(tmp_path: Path) -> None:
    import tensorflow as tf
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    program = PROGRAMS["forecaster"]()
    trials = trials_of(program)
    written(program, tmp_path / "m", trials)
    # The messages of TensorFlow Serving, as far as they are used; no package that has them runs with this TensorFlow.
    file = descriptor_pb2.FileDescriptorProto(name="logs.proto", package="logs", syntax="proto3")
    fields = {
        "ModelSpec": [("name", 1, "string"), ("signature_name", 3, "string")],
        "Entry": [("key", 1, "string"), ("value", 2, "bytes")],
        "PredictRequest": [("model_spec", 1, "ModelSpec"), ("inputs", 2, "Entry*")],
        "PredictLog": [("request", 1, "PredictRequest")],
        "PredictionLog": [("predict_log", 6, "PredictLog")],
    }
    kinds = {"string": 9, "bytes": 12}
    for message, members in fields.items():
        described = file.message_type.add(name=message)
        for name, number, kind in members:
            field = described.field.add(name=name, number=number, label=3 if kind.endswith("*") else 1)
            kind = kind.removesuffix("*")
            field.type = kinds.get(kind, 11)
            if kind not in kinds:
                field.type_name = f".logs.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    log = message_factory.GetMessageClass(pool.FindMessageTypeByName("logs.PredictionLog"))
    records = list(tf.data.TFRecordDataset(str(tmp_path / "m/assets.extra/tf_serving_warmup_requests")))
    assert len(records) == len(trials)
    for record, trial in zip(records, trials, strict=True):
        request = log.FromString(record.numpy()).predict_log.request
        assert request.model_spec.signature_name == "serving_default"
        (entry,) = request.inputs
        assert entry.key == "x"
        tensor = tf.make_ndarray(TensorProto.FromString(entry.value))
        np.testing.assert_array_equal(tensor, trial.inputs["x"])
