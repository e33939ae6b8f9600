"""The programs that the tests of the engine run."""

from support.graphs import Graph, draw

V, E, H, C = 11, 6, 9, 4


def text_program(vocabulary=V):
    """ids -> embedding -> a bidirectional LSTM with a mask -> another, its states -> log-probabilities."""
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    table = {"embeddings": draw(vocabulary, E)}
    rows = graph.add("embedding", "table", {"ids": ids}, table)
    mask = graph.add("ids_mask", "table", {"ids": ids})
    forward = graph.lstm(rows, "forward", E, H, mask=mask)
    backward = graph.lstm(rows, "backward", E, H, mask=mask, go_backwards=True)
    backward = graph.add("flip", "both", {"x": backward}, axis=1)
    both = graph.add("concatenate", "both", {"0": forward, "1": backward}, axis=-1)
    top = graph.lstm(both, "top", 2 * H, H, mask=mask, masked_output="zero")
    state_h = graph.add("lstm_state", "top", {"lstm": top}, state="h")
    state_c = graph.add("lstm_state", "top", {"lstm": top}, state="c")
    head = graph.dense(top, "head", H, C, "log_softmax")
    mean = graph.add("mean_over_time", "mean", {"x": top, "mask": mask})
    return graph.program(logs=head, h=state_h, c=state_c, mean=mean)


def pass_on(dtype="float32", *shape):
    graph = Graph()
    graph.input("x", *shape, dtype=dtype)
    return graph.program(y=0)


def two_inputs():
    """Two inputs and three outputs: one output for each input, and one for both."""
    graph = Graph()
    a, b = graph.input("a", -1, 3), graph.input("b", 3)
    of_a = graph.add("max_over_time", "top", {"x": a})
    of_b = graph.affine(b, "scaled", 3)
    both = graph.add("add", "sum", {"0": of_a, "1": of_b})
    return graph.program(a=of_a, b=of_b, both=both)
