"""Verbs that use a trained model: generate, forecast, detect, embed and judge."""
