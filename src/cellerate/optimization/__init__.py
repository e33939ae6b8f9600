"""`cellerate.optimize`: tunes and shrinks a trained model, keeps what helps, and proves it."""
