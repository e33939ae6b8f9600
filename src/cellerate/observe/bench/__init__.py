"""`cellerate bench`: our cases on the user's machine, beside the peers that are installed, and two such runs compared.

`race` runs the cases, `record` is what a run leaves behind, `compare` judges two of them, and `view` puts both into
words. Whatever is timed runs in processes of its own: `contestant` is their program, `process` our end of them.
"""
