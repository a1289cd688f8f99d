"""Models for other runtimes and from other libraries, verified by their outputs before they are written."""

from lambert.verb import Verb

VERBS = (
    Verb(
        "import",
        "Converts a folder of Hugging Face or Google to a model folder, and verifies it.",
        "wings.convert.verb:run_import",
        "wings.convert.settings:ImportConfig",
        order=90,
        takes="flags",
    ),
    Verb(
        "export",
        "Converts a model folder to another format, and verifies it.",
        "wings.convert.verb:run_export",
        "wings.convert.settings:ExportConfig",
        order=100,
        takes="flags",
    ),
)

NAMES = {
    "wings.convert.library": (
        "import_model",
        "export",
    ),
}
"""Public names of the package `lambert`, by module."""
