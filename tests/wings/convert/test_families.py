"""Families that cannot be written for other runtimes are refused, and none is written as another one."""

import pytest

from lambert.core.errors import UsageError
from lambert.model.config import EncoderConfig
from lambert.model.heads import build_model
from lambert.wings.convert.original import check_traceable


@pytest.mark.parametrize("family", ["mpnet", "nomic_bert", "gte", "eurobert"])
def test_families_without_padded_encoders_are_named(family: str) -> None:
    model = build_model(EncoderConfig(vocabulary=20, block=family), {"label": 2})
    with pytest.raises(UsageError, match=f"--format onnx cannot contain the block {family}: use --format hf"):
        check_traceable(model, "onnx")
