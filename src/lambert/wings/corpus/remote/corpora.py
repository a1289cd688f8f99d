"""Copies corpora to an object store and back. A corpus in the store is complete if it has a `manifest.json`, which is
written last. Until then an object `MARK` allows `lambert prepare` to replace the other objects.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lambert.core.contents import sha256
from lambert.core.errors import DataError, UsageError
from lambert.core.files import delete_folder, make_folder, not_written, remove_leftovers, sync
from lambert.core.lock import lock_folder
from lambert.core.shards import FORMAT_VERSION, check_corpus, has_hash, read_manifest
from lambert.core.urls import public
from lambert.text.tokenizers import tokenizer
from lambert.wings.corpus.remote.fetch import download
from lambert.wings.corpus.remote.servers import source_of
from lambert.wings.corpus.remote.store import Store

MANIFEST, MARK = "manifest.json", "lambert-prepare-unfinished.txt"
_SHARD = re.compile(r"[a-z]+/\d{5,}\.bin")
_TOKENIZER = (tokenizer.JSON, "tokenizer_config.json", "vocab.txt")
COPYING = "copying"
_MARK_TEXT = (
    "`lambert prepare` has not completed the corpus in this folder: it is complete when manifest.json is there.\n"
)
Progress = Callable[[int, int, str], None]


def find_published(url: str, check: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
    """Returns the manifest of the corpus at `url`, or None if there is none or files of it are missing.

    `check` is called with the manifest and raises UsageError if it belongs to another corpus. Raises UsageError if
    there is something other than a corpus.
    """
    store = Store(url)
    objects = store.objects()
    if MANIFEST not in objects:
        if objects and MARK not in objects:
            raise UsageError(f"{public(url)} exists and is not a prepared corpus: choose another --out, or delete it.")
        return None
    manifest = _parse_manifest(store.read(MANIFEST), url)
    check(manifest)
    sizes = {name: objects[name]["size"] for name in objects}
    files = _list_files(manifest)
    if not all(name in sizes and size in (None, sizes[name]) for name, size in files.items()):
        return None
    if MARK in objects:  # left by a command that was killed after it had written the manifest
        store.delete(MARK)
    return manifest


def begin(url: str, folder: Path) -> None:
    """Writes MARK, through a file in `folder`, so that an unwritable store is detected before the work begins."""
    try:
        make_folder(folder)
        (folder / MARK).write_text(_MARK_TEXT)
    except OSError as error:
        raise not_written(folder, error, "work folder") from error
    Store(url).write(MARK, folder / MARK)
    (folder / MARK).unlink(missing_ok=True)


def publish(corpus: Path, url: str, progress: Progress) -> None:
    """Copies the files of a corpus that are missing or differ at `url`, the manifest last, and compares each object
    with its file. Raises MachineError if the store refuses a write or has content other than what was sent.
    """
    store = Store(url)
    objects = store.objects()
    if MANIFEST in objects and not store.holds(MANIFEST, corpus / MANIFEST):
        store.delete(MANIFEST)
    names = [name for name in (*_list_files(read_manifest(corpus)), *_TOKENIZER) if (corpus / name).is_file()]
    names = [*dict.fromkeys(names), MANIFEST]
    for name in sorted(objects.keys() - names):
        if _SHARD.fullmatch(name):  # of a longer corpus that was not completed
            store.delete(name)
    total = sum((corpus / name).stat().st_size for name in names)
    done = 0
    for name in names:
        path = corpus / name
        progress(done, total, COPYING)
        if name not in objects or not store.holds(name, path):
            store.write(name, path)
        done += path.stat().st_size
    progress(total, total, COPYING)
    if MARK in store.objects():
        store.delete(MARK)


def fetch_corpus(url: str, out: Path, progress: Progress) -> dict[str, Any]:
    """Copies the corpus at `url` to the folder `out`, compares it with its hashes, and returns its manifest. After a
    kill, complete files are kept beside `out`. If `out` already has this corpus, it is only compared.

    Raises:
        DataError: There is no corpus, or the hash of a file differs from its manifest.
        MachineError: The store cannot be reached, or the disk is full.
        UsageError: `out` holds something else.
    """
    manifest = _parse_manifest(_read_manifest(url), url)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not (out / MANIFEST).is_file() or read_manifest(out) != manifest:
            raise UsageError(f"{out} exists and is not the corpus at {public(url)}: choose another --out.")
        check_corpus(out, whole=True)
        return manifest
    keep = out.with_name(out.name + ".fetch")
    with lock_folder(keep, "out"):
        folder = keep / "corpus"
        try:
            _fetch_files(url, folder, manifest, progress)
            check_corpus(folder)
            for path in (*sorted(folder.rglob("*")), folder):
                sync(path)
            remove_leftovers(out)
            folder.rename(out)
            sync(out.parent)
        except OSError as error:
            raise not_written(keep, error, "out") from error
        delete_folder(keep)
    return manifest


def _fetch_files(url: str, folder: Path, manifest: Mapping[str, Any], progress: Progress) -> None:
    make_folder(folder)
    (folder / MANIFEST).write_bytes(_read_manifest(url))
    hashes = _list_hashes(read_manifest(folder))  # which checks that names stay in the folder
    objects = Store(url).objects()
    wanted = [name for name in (*hashes, *_TOKENIZER) if name in hashes or name in objects]
    missing = [name for name in wanted if name not in objects]
    if missing:
        raise DataError(
            f"{public(url)}/{missing[0]} is missing: repeat the command that made the corpus, which copies it again."
        )
    total, done = sum(objects[name]["size"] for name in dict.fromkeys(wanted)), 0
    for name in dict.fromkeys(wanted):
        path = folder / name
        make_folder(path.parent)
        if not path.is_file() or sha256(path) != hashes.get(name):
            part, before = path.with_name(f"{path.name}.part"), done
            address = f"{url.rstrip('/')}/{name}"
            download(source_of(address), address, part, "", lambda own, _, what: progress(before + own, total, what))  # noqa: B023
            if name in hashes and sha256(part) != hashes[name]:
                part.unlink()
                raise DataError(f"{public(address)} is damaged: its SHA-256 is not that of the manifest.")
            part.replace(path)
            part.with_name("part.json").unlink(missing_ok=True)
        done += path.stat().st_size


def _read_manifest(url: str) -> bytes:
    store = Store(url)
    if MANIFEST not in store.objects():
        raise DataError(f"No prepared corpus at {public(url)} (no {MANIFEST}).")
    return store.read(MANIFEST)


def _parse_manifest(data: bytes, url: str) -> dict[str, Any]:
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        manifest = None
    if not has_hash(manifest) or manifest.get("format_version") != FORMAT_VERSION:
        raise DataError(f"{public(url)}/{MANIFEST} is damaged, or of another version of Lambert: choose another --out.")
    return dict(manifest)


def _list_files(manifest: Mapping[str, Any]) -> dict[str, int | None]:
    """Returns the names of the files of a corpus except its manifest, with their sizes if known."""
    shards = {f"{split}/{shard['file']}": shard["bytes"] for split, own in manifest["splits"].items()
              for shard in own["shards"]}  # fmt: skip
    indexes = [f"{split}/index.npy" for split in manifest["splits"]]
    return shards | dict.fromkeys([*indexes, tokenizer.JSON, *manifest.get("tokenizer_files", {})])


def _list_hashes(manifest: Mapping[str, Any]) -> dict[str, str]:
    splits = manifest["splits"].items()
    hashes = {f"{split}/{shard['file']}": shard["sha256"] for split, own in splits for shard in own["shards"]}
    hashes |= {f"{split}/index.npy": own["index_sha256"] for split, own in splits}
    return hashes | {tokenizer.JSON: manifest["tokenizer_sha256"], **manifest.get("tokenizer_files", {})}
