"""The training engine in Keras: runs whole steps of `fit` on the native core, for models that it supports.

`seam` puts the engine into a model's `make_train_function`. `step` runs a step; its `parts` are a `graph`, `losses`
with metrics, and the optimizer's `updates`. `batches` turns the data of `fit` into arrays, `observer` updates all
metrics but means, and `lending` makes Keras's variables current whenever they are read.
"""
