"""Into how many micro-batches an update is divided: a rule that the stream and the planner share."""

_MULTIPLE = 8
"""Above this count, the number of micro-batches is a multiple of it: a node has at most 8 ranks."""


def even_count(least: int) -> int:
    """Returns the number of micro-batches where at least `least` are needed: 1, 2, 4 or a multiple of 8, so that small
    numbers of ranks get equal shares."""
    return 1 << (least - 1).bit_length() if least <= _MULTIPLE else -(-least // _MULTIPLE) * _MULTIPLE
