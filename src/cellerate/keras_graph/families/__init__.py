"""The nodes of a program for the families of layers that become several: recurrent ones, convolutions and pooling,
attention.
"""
