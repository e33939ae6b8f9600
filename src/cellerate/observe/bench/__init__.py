"""`cellerate bench`: our cases on the user's machine, beside the peers that are installed, and two such runs compared.

`race` runs the cases, `record` holds the results of a run, `compare` judges two records, and `view` puts both into
words. Contestants run in processes of their own: `contestant` is their program, `process` our end of them.
"""
