"""Import and export as Python functions."""

from collections.abc import Sequence
from pathlib import Path

from lambert.core.files import as_path
from lambert.core.settings import as_names
from lambert.inference.config import Precisions
from lambert.runs.result import Result
from lambert.wings.convert import verb as conversion
from lambert.wings.convert.settings import Against, ExportConfig, ImportConfig
from lambert.wings.convert.verb import Imported


def import_model(
    source: str | Path, *, out: str | Path | None = None, check: str | Path | None = None, against: Against = "",
    lowercase: bool | None = None, code: Sequence[str] = (),
) -> Imported:  # fmt: skip
    """Converts a folder of Hugging Face, or a checkpoint of Google's BERT, to a model folder, as `lambert import`.

    Args:
        source: The folder, or one checkpoint of several.
        out: Model folder to write; it must not exist. None: the folder is only compared (`check`).
        check: File of texts on which Lambert is compared with the library that made the folder. The result has the
            table (`checks`). If they differ, DataError is raised and nothing is written.
        against: transformers or sentence-transformers; empty: the library that made the folder.
        lowercase: Whether the vocabulary is uncased; None: as its files say.
        code: Names of the code from outside that the model folder may import.
    """
    new, texts = (None if path is None else as_path(path, name) for name, path in (("out", out), ("check", check)))
    config = ImportConfig(as_path(source, "source"), new, texts, against, lowercase, as_names(code, "code"))
    return conversion.run_import(config)


def export(
    model: str | Path, *, out: str | Path, format: str | None = None, code: Sequence[str] = (),
    precision: Precisions | None = None, calibration: str | Path | None = None,
) -> Result:  # fmt: skip
    """Converts a run folder or model folder to another format, as `lambert export`.

    Args:
        model: The folder.
        out: Folder to write; it must not exist.
        format: Its format; "hf" by default.
        code: Names of the code from outside that the model folder may import.
        precision: float32 (the default), bfloat16 or int8; not every format has each.
        calibration: Text file from which openvino's int8 learns the ranges of activations.
    """
    texts = None if calibration is None else as_path(calibration, "calibration")
    places = as_path(model, "model"), as_path(out, "out")
    config = ExportConfig(*places, format or "hf", as_names(code, "code"), precision or "float32", texts)
    return conversion.run_export(config)
