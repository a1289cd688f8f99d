"""Models for other runtimes: folders in other formats, verified by the outputs of the runtime before they appear."""
