"""The passes of `optimize`, in their order."""
