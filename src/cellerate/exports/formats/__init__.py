"""The formats of exported models, one module and one record each."""
