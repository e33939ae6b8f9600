"""The command line; each verb has a small file."""
