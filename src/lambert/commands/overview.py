"""The help of the command `lambert` itself: what it is for, and one line for each verb.

The standard library formats it, so that the help does not wait for the imports of the parser.
"""

import shutil
import textwrap

from lambert.verb import all_verbs

HELP_FLAGS = {"--help", "-h"}
VERSION = "--version"
_BEGINNING = """Usage: lambert VERB

Pre-train and fine-tune BERT-family encoders, from raw text to an answer.

"""
_RECIPES = "take an optional TOML recipe, then dotted flags that override it:"
_EXAMPLE = """lambert pretrain recipes/bert-base-128.toml --train.batch-size 256

`lambert VERB --help` explains each setting of a verb.

Verbs:"""
_END = "--version: print the version of Lambert and exit."
_INDENT, _NARROWEST, _WIDEST = 2, 40, 120


def format_overview() -> str:
    """Returns the help, as wide as the terminal, with one indented paragraph for each verb."""
    width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
    column = max(map(len, all_verbs())) + 2 * _INDENT
    lines = [
        textwrap.fill(
            verb.summary, width, initial_indent=f"{'':{_INDENT}}{name}".ljust(column), subsequent_indent=" " * column
        )
        for name, verb in all_verbs().items()
    ]
    *names, last = [name for name, verb in all_verbs().items() if verb.takes in ("recipe", "table")]
    recipes = textwrap.fill(f"{', '.join(names)} and {last} {_RECIPES}", width)
    return "\n".join([_BEGINNING + recipes, _EXAMPLE, *lines, "", _END])
