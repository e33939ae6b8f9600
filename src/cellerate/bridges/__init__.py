"""What is special to one Keras backend, one file a backend: compiling, stepping, native data sets."""
