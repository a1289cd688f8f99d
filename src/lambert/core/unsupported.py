"""Recognises unsupported files and folders, so that errors say what they are and how to convert them."""

import re
from codecs import BOM_UTF8
from pathlib import Path

from lambert.core.errors import DataError

ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_WORK = ("extract", "fetch", "clean", "deduplicate", "encode", "tokens")
"""Folders in the work folder of `lambert prepare`."""


def refuse_archive(path: Path) -> None:
    """Raises DataError if the file name is that of an archive of several files."""
    if path.name.lower().endswith(ARCHIVES) and not path.is_dir():
        raise DataError(f"{path} is an archive, which is not unpacked here. Unpack it and name its content.")


def is_work_folder(folder: Path) -> bool:
    """Returns whether a folder holds the results of the steps of `lambert prepare`."""
    return (folder / "lock.json").is_file() and any((folder / name).is_dir() for name in _WORK)


NOT_DOWNLOADED = (
    "Nothing is downloaded: for a model of the Hugging Face Hub, `hf download NAME --local-dir FOLDER` first, and give "
    "that folder."
)


_ADAPTER = "adapter_config.json"
"""File of peft, with which transformers also loads an adapter on top of another model."""


def refuse_model(path: Path) -> None:
    """Raises DataError if the path is an archive, a file or an adapter, not the folder of a whole model."""
    refuse_archive(path)
    if (path / _ADAPTER).is_file():
        raise DataError(
            f"{path} has {_ADAPTER}: it is an adapter of peft (LoRA), not a whole model. Merge it first: "
            "AutoPeftModel.from_pretrained(FOLDER).merge_and_unload().save_pretrained(OTHER), with the tokenizer."
        )
    if path.is_file():
        raise DataError(f"{path} is a file. Give the folder that holds it, with config.json and the tokenizer.")


_ROOT = 1 << 16
"""First bytes in which the root element of an XML file is searched for (our choice)."""
_XML = re.compile(rb"<(?:tei(?:\.2|corpus)?|rss|feed|rdf:rdf|fictionbook)[\s>]", re.IGNORECASE)
"""Root elements of XML files of text without an XML declaration: TEI, RSS, Atom, FictionBook."""
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_ELEMENT = re.compile(rb"<([A-Za-z_][\w.:-]{0,60})[\s/>]")
CONLL = (".conll", ".conllu", ".conll2003", ".bio", ".iob", ".iob2")
"""Suffixes of files with one word and its tag on each line."""


def explain_markup(beginning: bytes) -> str:
    """Returns the end of a message if a file with this beginning is an HTML page, another XML file or RTF, else ""."""
    text = beginning.removeprefix(BOM_UTF8).lstrip()
    if text.startswith(b"{\\rtf"):
        return "is an RTF document, and its markup would be learnt as text. Save it as plain text"
    declared = text.startswith(b"<?xml")
    if declared:
        text = text.partition(b"?>")[2]
    text = _COMMENT.sub(b"", text[:_ROOT]).lstrip()
    if text.lower().startswith((b"<!doctype html", b"<html")):
        return "is an HTML page, and its markup would be learnt as text. Name it .html"
    if declared or _XML.match(text):
        root = _ELEMENT.search(text)
        named = f" (<{root[1].decode()}>)" if root else ""
        return f"is an XML file{named}, and its markup would be learnt as text. Convert it to plain text or HTML"
    return ""
