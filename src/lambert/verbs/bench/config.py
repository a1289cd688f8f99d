"""The settings of `lambert bench`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from lambert.core.errors import UsageError
from lambert.core.registry import nearest
from lambert.core.settings import check

_SEEDS = f"[0, {2**63})"  # numpy draws from no negative one
DRAWN = ("wikipedia", "squad", "full")
"""Kinds of lengths that are drawn, not read from a file."""
LENGTHS_OF = {"finetune": "squad", "inference": "squad"}
"""What is not pre-training is measured on the lengths of question answering."""
SEQUENCES_OF = {"loader": 256}
LONGEST = {"squad": 384}
"""Devlin et al., 2018, appendix A.3 and google-research/bert, run_squad: 384 tokens for SQuAD, 512 elsewhere."""
Padding = Literal["longest", "length"]
BenchPrecision = Literal["float32", "bfloat16", "float16", "float8", "int8"]
Packing = Literal["pairs", "balanced", "full", "google"]


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """One kind of work, measured in turn with its peers on sequences of realistic lengths."""

    work: str = "pretrain"
    """pretrain, finetune, inference, loader, tokenizer, optimizer, or "package.module:name"."""
    size: str = "mini"
    """tiny, mini, small, medium, base or large."""
    sequences: int = 0
    """Sequences a step; 0: 8, for the loader an update of 256."""
    length: int = 0
    """Tokens that the longest sequence may have; 0: 384 with the lengths of SQuAD, else 512."""
    lengths: str = ""
    """wikipedia (lognormal, 46% of `length` on average, as articles at 512), squad (lognormal, as questions with their
    paragraphs at 384), full, or a file with one length a line. Empty: squad for finetune and inference, else
    wikipedia."""
    padding: Padding = "longest"
    """Rows of a peer: as long as the longest sequence of the batch, or all `length` as in stock scripts."""
    precision: BenchPrecision = "bfloat16"
    """Of the matrix products, on all sides; int8 for inference alone and float8 for pretrain and finetune alone, beside
    bfloat16 where a peer has none."""
    dropout: float = 0.0
    """Of states and attention weights, on all sides."""
    accumulate: int = 1
    """pretrain, finetune: micro-batches an update, each of `sequences`; a round is an update."""
    optimizer: bool = False
    """pretrain, finetune: include a step of fused AdamW, on all sides."""
    compile: bool = False
    """pretrain, finetune: Lambert's side with its blocks compiled, as train.compile = "on" does."""
    peer: str = ""
    """Measure beside these, in turn, comma separated. pretrain, finetune: transformers, transformers-compiled;
    inference: these, onnxruntime, openvino, openvino-latency, openvino-padded; tokenizer: tokenizers; loader:
    dataloader; optimizer: adamw, adamw-foreach; or "package.module:name"."""
    rounds: int = 7
    """Rounds measured of each side, A B A B; figures are medians."""
    threads: int = 0
    """Threads of the processor; 0: as torch chooses."""
    seed: int = 0
    """Of lengths and tokens."""
    device: str = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:N or mps."""
    corpus: Path | None = None
    """loader: a folder that `lambert prepare` wrote; not set: random documents."""
    packing: Packing = "pairs"
    """loader: how sequences are cut from documents, as packing.mode of `lambert pretrain`."""
    whole_word: bool = False
    """loader: mask all pieces of a word or none."""
    consumes: float = 0.0
    """loader: tokens a second that the model takes, to compare with; 0: not compared."""
    text: tuple[Path, ...] = ()
    """tokenizer: files of text, as `lambert prepare` reads them."""
    tokenizer: Path | None = None
    """tokenizer: vocab.txt, tokenizer.json or a folder with either."""
    profile: Path | None = None
    """Instead of measuring, profile three rounds of Lambert's side: a Chrome trace in this file, the costs printed."""
    json: bool = False
    """Print one JSON object."""
    only_memory: str = ""
    """Take two rounds of this side ("lambert" or a peer) and print this process's peak memory in MB."""

    def __post_init__(self) -> None:
        check(self, threads="[0, 1024]", rounds="[1, inf)", accumulate="[1, 1000000]", dropout="[0, 1)", seed=_SEEDS)
        if self.precision == "int8" and self.work in ("pretrain", "finetune"):
            raise UsageError("precision = 'int8' is for inference: train in bfloat16.")
        alone = [name for name in ("optimizer", "compile") if getattr(self, name)] + ["accumulate"] * (
            self.accumulate > 1
        )
        if alone and self.work in ("inference", "loader", "tokenizer", "optimizer"):
            raise UsageError(f"{alone[0]} is for the works pretrain and finetune, not for {self.work}.")
        if self.profile is not None and self.profile.is_dir():
            raise UsageError(f"profile = {self.profile} is a folder: name a file for the trace.")
        if self.length and self.length < 16:
            raise UsageError(f"bench needs a length of at least 16 tokens (0: as the lengths), not {self.length}.")
        named = (
            ("padding", get_args(Padding)),
            ("packing", get_args(Packing)),
            ("precision", get_args(BenchPrecision)),
        )
        for name, known in named:
            if getattr(self, name) not in known:
                raise UsageError(
                    f"{name} = {getattr(self, name)!r} is unknown.{nearest(getattr(self, name), [*known])}"
                )
        if self.precision == "float8" and self.work == "inference":
            raise UsageError("precision = 'float8' is for training: bench inference in bfloat16 or int8.")
        if self.lengths and self.lengths not in DRAWN and not Path(self.lengths).is_file():
            hint = nearest(self.lengths, [*DRAWN])
            raise UsageError(f"lengths = {self.lengths!r} is neither a known kind nor a file.{hint}")

    def resolved(self) -> "BenchConfig":
        """With the work's own lengths and number of sequences where none are set."""
        lengths = self.lengths or LENGTHS_OF.get(self.work, "wikipedia")
        sequences = self.sequences or SEQUENCES_OF.get(self.work, 8)
        return replace(self, lengths=lengths, length=self.length or LONGEST.get(lengths, 512), sequences=sequences)

    def peers(self) -> list[str]:
        """The names in `peer`, each once."""
        return list(dict.fromkeys(name.strip() for name in self.peer.split(",") if name.strip()))
