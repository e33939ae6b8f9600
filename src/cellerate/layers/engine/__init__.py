"""The training engine in Keras: whole steps of `fit` on the native core, where a model is one that it knows.

`seam` puts it into a model's `make_train_function`. `step` is what a model trains with: its graph, loss, metrics and
optimizer as the core takes them. `lending` keeps Keras's variables true whenever somebody looks.
"""
