"""The vectors of folders of sentence-transformers against those of that library, for folders of all its ages.

    python -m benchmarks.sentence_transformers_folders.run [--family bert] [--age 2021] [--log FILE]

Every folder is one of four families with random weights, in the files of one of five ages, with one of eight poolings,
one of three kinds of prompts, and a limit of 16 tokens or none. It is read by both libraries, which compute the vectors
of 20 texts, of which one is empty and some exceed the limit. Prints the largest difference of a component for each
family and age. Ends with 1 if it exceeds 2e-6 or if a folder is refused.
"""

import argparse
import itertools
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

LARGEST = 2e-6
FAMILIES = ("bert", "roberta", "modernbert", "mpnet")
AGES = ("2021", "3.4", "5.2", "5.4", "6.2")
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
POOLINGS = (*((mode,) for mode in MODES), ("mean", "lasttoken"), ("cls", "max", "mean"))
PROMPTS = ("none", "default", "excluded")
LIMITS = (16, 0)
WIDTH, POSITIONS = 32, 96
FLAGS = (
    "pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens",
    "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken",
)  # fmt: skip
WORDS = [
    "the", "boat", "near", "a", "quiet", "road", "was", "old", "and", "bright", "when", "we", "saw", "its", "river",
]  # fmt: skip
COUNTS = (2, 5, 9, 13, 14, 15, 16, 20, 30, 40, 60, 7)
TEXTS = [
    "", " ", "boat", "The Boat!", "a quiet road", "ünïcode döts", "second-hand", "1234567890",
    *(" ".join(WORDS[(count * 3 + k) % len(WORDS)] for k in range(count)) for count in COUNTS),
]  # fmt: skip


def encoder(family: str, folder: Path) -> None:
    """Writes a small encoder with random weights and its tokenizer."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    brackets = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
    names = {"bert": brackets, "modernbert": brackets}
    first, last, pad, unknown, mask = names.get(family, ("<s>", "</s>", "<pad>", "<unk>", "<mask>"))
    order = [pad, unknown, first, last, mask] if family in names else [first, pad, last, unknown, mask]
    bytewise = family in ("roberta", "modernbert")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet()) if bytewise else [chr(c) for c in range(33, 127)]
    pieces = [*order, *letters, *([] if bytewise else [f"##{c}" for c in letters] + WORDS)]
    ids = {piece: number for number, piece in enumerate(pieces)}
    if bytewise:
        made = Tokenizer(models.BPE(ids, []))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        made = Tokenizer(models.WordPiece(ids, unk_token=unknown))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pair = f"{first} $A {last} $B:1 {last}:1" if family in names else f"{first} $A {last} {last} $B {last}"
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=pair, special_tokens=[(first, ids[first]), (last, ids[last])]
    )
    shape: dict[str, Any] = {
        "vocab_size": len(pieces), "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 48, "pad_token_id": ids[pad], "bos_token_id": ids[first], "eos_token_id": ids[last],
        "max_position_embeddings": POSITIONS + (2 if family in ("roberta", "mpnet") else 0), "initializer_range": 0.3,
    }  # fmt: skip
    if family == "modernbert":
        shape |= {"cls_token_id": ids[first], "sep_token_id": ids[last], "local_attention": 8}
    kind = {"bert": "Bert", "roberta": "Roberta", "modernbert": "ModernBert", "mpnet": "MPNet"}[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**shape)
    getattr(transformers, f"{kind}Model")(config).eval().save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "cls_token": first, "sep_token": last, "pad_token": pad,
        "unk_token": unknown, "mask_token": mask, "model_max_length": 10**30,
        "model_input_names": ["input_ids", *(["token_type_ids"] if family == "bert" else []), "attention_mask"],
    }  # fmt: skip
    write(folder / "tokenizer_config.json", settings)


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def describe(folder: Path, age: str, modes: tuple[str, ...], prompts: str, limit: int) -> None:
    """Writes beside an encoder what sentence-transformers of this age writes."""
    new = age in ("5.4", "6.2")
    kinds = ["Transformer", "Pooling", "Normalize"]
    types = {kind: f"sentence_transformers.models.{kind}" for kind in kinds}
    if new:
        of = "base" if age == "6.2" else "sentence_transformer"
        types = {
            "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
            "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
            "Normalize": f"sentence_transformers.{of}.modules.normalize.Normalize",
        }
    paths = ["", "1_Pooling", "2_Normalize"]
    write(
        folder / "modules.json",
        [{"idx": n, "name": str(n), "path": paths[n], "type": types[kind]} for n, kind in enumerate(kinds)],
    )
    excluded = prompts == "excluded"
    if new:
        mode: Any = modes[0] if len(modes) == 1 else list(reversed(modes))  # an order that flags cannot say
        pooling = {"embedding_dimension": WIDTH, "pooling_mode": mode, "include_prompt": not excluded}
    else:
        count = 4 if age == "2021" and not set(modes) & {"weightedmean", "lasttoken"} and not excluded else 6
        pooling = {"word_embedding_dimension": WIDTH} | {
            flag: mode in modes for flag, mode in zip(FLAGS[:count], MODES, strict=False)
        }
        if age != "2021" or excluded:
            pooling["include_prompt"] = not excluded
    write(folder / "1_Pooling" / "config.json", pooling)
    if age == "6.2":
        output = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
        write(folder / "2_Normalize" / "config.json", output)
    if new:
        text = {"method": "forward", "method_output_name": "last_hidden_state"}
        transformer = {
            "transformer_task": "feature-extraction", "modality_config": {"text": text},
            "module_output_name": "token_embeddings",
        }  # fmt: skip
        write(folder / "sentence_bert_config.json", transformer)
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
        write(folder / "tokenizer_config.json", {**tokenizer, "model_max_length": limit or POSITIONS})
    else:
        length = limit or POSITIONS
        write(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    settings: dict[str, Any] = {"__version__": {"sentence_transformers": {"2021": "2.0.0"}.get(age, f"{age}.0")}}
    if age != "2021" or prompts != "none":
        named = {} if prompts == "none" else {"query": "find: ", "s2p_query": "the road to "}
        default = None if prompts == "none" else "s2p_query"
        settings |= {"prompts": named, "default_prompt_name": default, "similarity_fn_name": "cosine"}
    if age in ("5.2", "5.4", "6.2"):
        settings["model_type"] = "SentenceTransformer"
    write(folder / "config_sentence_transformers.json", settings)


def difference(folder: Path) -> float:
    """Returns the largest difference of a component of the vectors of both libraries."""
    from sentence_transformers import SentenceTransformer

    import lambert

    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    ours = lambert.load(folder, device="cpu")
    wanted, found = theirs.encode(TEXTS, show_progress_bar=False), ours.encode(TEXTS)
    if wanted.shape != found.shape:
        return float("inf")
    return float(np.abs(wanted - found).max())


def folders(families: list[str], ages: list[str]) -> Iterator[tuple[str, str, tuple[str, ...], str, int]]:
    yield from itertools.product(families, ages, POOLINGS, PROMPTS, LIMITS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--age", choices=AGES, action="append")
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    largest: dict[tuple[str, str], list[float]] = {}
    lines, begin = [], time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        made: set[str] = set()
        for family, age, modes, prompts, limit in folders(given.family or [*FAMILIES], given.age or [*AGES]):
            if family not in made:
                encoder(family, Path(work, family))
                made.add(family)
            folder = Path(work, "folder")
            shutil.copytree(Path(work, family), folder)
            describe(folder, age, modes, prompts, limit)
            found = difference(folder)
            largest.setdefault((family, age), []).append(found)
            if found > LARGEST:
                lines.append(f"{family} {age} {'+'.join(modes)} prompts {prompts} limit {limit}: {found:.1e}")
            shutil.rmtree(folder)
    total = sum(map(len, largest.values()))
    lines += [f"{family} {age}: {len(some)} folders, {max(some):.1e}" for (family, age), some in largest.items()]
    worst = max(max(some) for some in largest.values())
    lines.append(f"{total} folders, {len(TEXTS)} texts each, largest difference {worst:.1e}")
    print("\n".join(lines), f"{time.monotonic() - begin:.0f} s", sep="\n")
    if given.log:
        given.log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(worst > LARGEST)


if __name__ == "__main__":
    sys.exit(main())
