"""The options of verbs that read tables."""

import dataclasses

from cellerate.cli.output import note
from cellerate.data.table_options import TableOptions


def spoken(table: TableOptions, quiet: bool) -> TableOptions:
    """The options, with what is found out about the tables said on stderr unless that is to be quiet."""
    return table if quiet else dataclasses.replace(table, told=note)


def table_words(table: TableOptions) -> list[str]:
    """The options that were given, as a command has them."""
    words = []
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if field.name != "told" and value != field.default:
            words += [f"--{field.name.replace('_', '-')}", {"\t": "tab", "": "none"}.get(value, str(value))]
    return words
