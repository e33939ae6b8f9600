"""The nodes of a program for layers that become several: recurrent ones, convolutions, pooling and attention."""
