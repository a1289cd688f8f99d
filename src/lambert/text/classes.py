"""Names of classes for columns of whole numbers: `ClassLabel` of Hugging Face's datasets."""

import json
from collections.abc import Mapping
from typing import Any

from lambert.text.read_row import Row

Classes = Mapping[str, tuple[str, ...]]
"""The names of the classes 0, 1, ... of columns."""
METADATA = b"huggingface"
"""The key of the features in the metadata of a schema."""


def encode_features(features: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Returns features as metadata of a schema, which `decode_classes` reads."""
    return {METADATA: json.dumps({"info": {"features": features}}).encode()}


def decode_classes(metadata: Mapping[bytes, bytes]) -> Classes:
    """Returns the names of classes in the metadata of a schema. Raises ValueError, AttributeError, TypeError or
    RecursionError for damaged metadata."""
    return find_classes(json.loads(metadata.get(METADATA, b"{}")).get("info", {}).get("features", {}))


def find_classes(features: Mapping[str, Any]) -> Classes:
    """Returns the names of classes of features, as `Features.to_dict` gives them."""
    found = {name: _classes(feature) for name, feature in features.items()}
    return {name: names for name, names in found.items() if names}


def _classes(feature: Any) -> tuple[str, ...]:
    """Returns the names of the classes of a feature, or of the elements of a list."""
    if isinstance(feature, list):
        return _classes(feature[0]) if feature else ()
    if feature.get("_type") == "ClassLabel":
        return tuple(map(str, feature.get("names") or ()))
    inner = feature.get("feature")
    return _classes(inner) if isinstance(inner, dict) else ()


def name_classes(row: Row, names: Classes) -> Row:
    """Returns the row with names of classes instead of their numbers. Keeps numbers without a name, such as -1."""
    return {key: _name(value, names[key]) if key in names else value for key, value in row.items()}


def _name(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_name(element, names) for element in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
