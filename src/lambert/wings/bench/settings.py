"""The settings of `lambert bench`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from lambert.core.errors import UsageError
from lambert.core.registry import nearest
from lambert.core.settings import check

_SEEDS = f"[0, {2**63})"  # numpy's generators take no negative seed
TRAINING, OTHERS = ("pretrain", "finetune"), ("run", "inference", "loader", "tokenizer", "optimizer")
DRAWN = ("wikipedia", "squad", "full")
"""Kinds of lengths that are drawn, not read from a file."""
LENGTHS_OF = {"finetune": "squad", "inference": "squad", "run": ""}
"""Default lengths by work; "wikipedia" for the others. Those of a run are the corpus's."""
SEQUENCES_OF = {"loader": 256, "run": 64}
DROPOUT_OF = {("run", "bert"): 0.1}
"""Dropout by work and block; 0 for the others. Sources: Devlin et al., 2018, appendix A.2; ModernBERT's config.json."""
LONGEST = {"squad": 384}
"""Default `length` by kind of lengths; 512 for the others. Sources: google-research/bert, run_squad (384); Devlin et
al., 2018, appendix A.2 (512)."""
Padding = Literal["longest", "length"]
BenchPrecision = Literal["auto", "float32", "bfloat16", "float16", "float8", "int8"]
Block = Literal["bert", "modernbert"]
Packing = Literal["pairs", "balanced", "full", "google"]
Optim = Literal["lamb", "adamw"]


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """One kind of work, measured in alternation with its peers on sequences of realistic lengths."""

    work: str = "pretrain"
    """pretrain, finetune, run (`lambert pretrain` as a whole), inference, loader, tokenizer, optimizer, or
    "package.module:name"."""
    size: str = "mini"
    """tiny (of BERT only), mini, small, medium, base or large."""
    block: Block = "bert"
    """pretrain, finetune, inference, run: the family of the encoder, bert or modernbert. ModernBERT does not predict
    next sentences, needs packing = "full" in a run, and has only transformers as a peer."""
    sequences: int = 0
    """Sequences per step; 0: 8, for run 64, for the loader 256."""
    length: int = 0
    """Maximum number of tokens of a sequence; 0: 384 with the lengths of SQuAD, else 512."""
    lengths: str = ""
    """wikipedia (lognormal, on average 46% of `length`, as Wikipedia articles at 512), squad (lognormal, as questions
    with their paragraphs at 384), full (all `length`), or a file with one length per line. Empty: squad for finetune
    and inference, else wikipedia."""
    padding: Padding = "longest"
    """Padded rows of a peer: as long as the longest sequence of the batch, or `length` tokens, as in stock scripts."""
    precision: BenchPrecision = "auto"
    """Precision of the matrix products on all sides. auto: as train.precision. int8 is for inference only, float8 for
    pretrain and finetune only; a peer without them computes in bfloat16."""
    dropout: float | None = None
    """Dropout of states and attention weights, on all sides. Unset: 0.1 for run with BERT's block, else 0."""
    accumulate: int = 1
    """pretrain, finetune: micro-batches per update, each of `sequences`; a round is an update."""
    optimizer: bool = False
    """pretrain, finetune: include a step of fused AdamW on all sides."""
    compile: bool = False
    """pretrain, finetune: compile the blocks of Lambert's side, as train.compile = "on" does."""
    peer: str = ""
    """Peers to measure too, comma separated. pretrain, finetune: transformers, transformers-compiled; inference: these,
    onnxruntime, openvino, openvino-latency; run: transformers, transformers-expert, transformers-expert-compiled;
    tokenizer: tokenizers; loader: dataloader; optimizer: adamw, adamw-foreach; or "package.module:name"."""
    rounds: int = 7
    """Measured rounds of each side, in alternation (A B A B); the figures are medians."""
    threads: int = 0
    """CPU threads; 0: torch's default."""
    seed: int = 0
    """Seed of the lengths and tokens."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:N or mps."""
    corpus: Path | None = None
    """run, loader: a corpus written by `lambert prepare`; not set, loader only: random documents."""
    packing: Packing = "pairs"
    """run, loader: how sequences are cut from documents; see packing.mode of `lambert pretrain`."""
    whole_word: bool = False
    """run, loader: mask all pieces of a word or none."""
    updates: int = 10
    """run: updates of each run; the first one is not measured."""
    optim: Optim = "lamb"
    """run: optimizer of Lambert's side; the peers have torch's fused AdamW."""
    micro_tokens: int = 0
    """run: tokens of a micro-batch of the peers, padding included; 0: the fastest of 2048, 4096 and 8192 in a short
    trial. Lambert's side determines its own."""
    consumes: float = 0.0
    """loader: tokens per second that the model consumes, to compare with; 0: no comparison."""
    text: tuple[Path, ...] = ()
    """tokenizer: text files, in the formats that `lambert prepare` reads."""
    tokenizer: Path | None = None
    """tokenizer: vocab.txt, tokenizer.json or a folder with either."""
    profile: Path | None = None
    """Profile three rounds of Lambert's side instead: write a Chrome trace to this file and print the costs."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        check(
            self,
            threads="[0, 1024]", rounds="[1, inf)", accumulate="[1, 1000000]", dropout="[0, 1)", seed=_SEEDS,
            updates="[2, 100000]",
        )  # fmt: skip
        choices = {"padding": Padding, "packing": Packing, "precision": BenchPrecision, "optim": Optim, "block": Block}
        for name, kind in choices.items():
            value, known = getattr(self, name), [*get_args(kind)]
            if value not in known:
                raise UsageError(f"{name} = {value!r} is unknown.{nearest(value, known)}")
        if self.precision == "int8" and self.work in TRAINING:
            raise UsageError("precision = 'int8' is for inference: train in bfloat16.")
        if self.precision == "float8" and self.work == "inference":
            raise UsageError("precision = 'float8' is for training: bench inference in bfloat16 or int8.")
        for name in ("optimizer", "compile", "accumulate"):
            if getattr(self, name) > (name == "accumulate") and self.work in OTHERS:
                raise UsageError(f"{name} is for the works pretrain and finetune, not for {self.work}.")
        if self.work == "run":
            self._check_run()
        elif self.block != "bert":
            self._check_block()
        if self.profile is not None and self.profile.is_dir():
            raise UsageError(f"profile = {self.profile} is a folder: name a file for the trace.")
        if 0 < self.length < 16:
            raise UsageError(f"bench needs a length of at least 16 tokens (0: as the lengths), not {self.length}.")
        if self.lengths and self.lengths not in DRAWN and not Path(self.lengths).is_file():
            hint = nearest(self.lengths, [*DRAWN])
            raise UsageError(f"lengths = {self.lengths!r} is neither a known kind nor a file.{hint}")

    def _check_run(self) -> None:
        if self.corpus is None:
            raise UsageError("work = run needs --corpus: make one by `lambert prepare --input TEXTS --out CORPUS`.")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise UsageError(f"precision = {self.precision!r} is not for the work run: take bfloat16 or float32.")
        if self.block == "modernbert" and self.packing != "full":
            raise UsageError("ModernBERT takes no pairs of segments: add --packing full.")
        for name in ("lengths", "profile"):
            if getattr(self, name):
                raise UsageError(f"{name} is not for the work run: its sequences are those of --corpus.")

    def _check_block(self) -> None:
        if self.work in OTHERS and self.work != "inference":
            others = ", ".join(("run", "inference", *TRAINING))
            raise UsageError(f"block = {self.block!r} is for the works {others}, not for {self.work}.")
        if foreign := [name for name in self.peers() if name.startswith(("onnxruntime", "openvino"))]:
            raise UsageError(f"peer = {foreign[0]} is measured with BERT's block only: leave block or the peer out.")

    def resolve(self) -> "BenchConfig":
        """Returns the settings with the work's defaults for lengths and sequences."""
        lengths = self.lengths or LENGTHS_OF.get(self.work, "wikipedia")
        sequences = self.sequences or SEQUENCES_OF.get(self.work, 8)
        length = self.length or LONGEST.get(lengths, 512)
        dropout = DROPOUT_OF.get((self.work, self.block), 0.0) if self.dropout is None else self.dropout
        return replace(self, lengths=lengths, length=length, sequences=sequences, dropout=dropout)

    def peers(self) -> list[str]:
        """Returns the names in `peer` without duplicates."""
        return list(dict.fromkeys(name.strip() for name in self.peer.split(",") if name.strip()))
