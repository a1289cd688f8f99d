"""Variable-length integers, and messages of Protocol Buffers without their schema.

Source: protobuf.dev, "Encoding". The functions raise ValueError for data that is cut short or damaged.
"""

_INTEGER, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
"""Kinds of fields: an integer of variable length, 8 bytes, bytes with their number before them, 4 bytes."""
_FIXED = {_LONG: 8, _SHORT: 4}


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the integer at a position, from 0 to below 2^70, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position : position + 1]
        if not byte:
            break
        position += 1
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value, position
    raise ValueError("an integer has no end")


def fields(message: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """Returns the fields of a message by their numbers: integers, of which the last is kept, and lists of bytes."""
    integers: dict[int, int] = {}
    contents: dict[int, list[bytes]] = {}
    position = 0
    while position < len(message):
        key, position = varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _INTEGER:
            integers[number], position = varint(message, position)
            continue
        if kind == _BYTES:
            size, position = varint(message, position)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"field {number} is of the unknown kind {kind}")
        value, position = message[position : position + size], position + size
        if position > len(message):
            raise ValueError(f"field {number} is cut short")
        if kind == _BYTES:
            contents.setdefault(number, []).append(value)
        else:
            integers[number] = int.from_bytes(value, "little")
    return integers, contents
