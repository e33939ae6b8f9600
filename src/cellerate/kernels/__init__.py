"""The kernels: LSTM layers (`lstm`), generation (`decoder`) and dense layers, on the native core and on CUDA."""
