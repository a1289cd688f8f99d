"""The file for the traceback of a bug."""

from pathlib import Path

from lambert.core.urls import without_secrets
from lambert.core.version import __version__

FILE = "crash.txt"


def save_traceback(command: str, traceback: str) -> str:
    """Writes a traceback to `crash.txt` in the current folder, under the version and the command. Returns a sentence
    that says where it is, or the traceback itself if the file cannot be written."""
    text = without_secrets(f"lambert {__version__} {command}\n\n{traceback}")
    try:
        Path(FILE).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return text
    return f"The traceback is in {FILE}: please report it."
