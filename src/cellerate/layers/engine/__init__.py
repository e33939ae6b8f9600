"""The training engine in Keras: whole steps of `fit` on the native core, where a model is one that it knows.

`seam` puts it into a model's `make_train_function`. `step` is what a model trains with; its `parts` are a `graph`,
`losses` with metrics, and the optimizer's `updates`. `batches` makes arrays of what `fit` takes, `observer` updates
all metrics but means, and `lending` keeps Keras's variables true whenever somebody looks.
"""
