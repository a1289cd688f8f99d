"""The names of a family's tensors in model folders, current and older ones, from tables of modules."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

_HEADS = {
    "label.classifier": "classifier", "choice.classifier": "classifier", "tag.classifier": "classifier",
    "span.classifier": "qa_outputs",
}  # fmt: skip
"""Names of the layers before the logits in most families."""
_NO_WEIGHTS = re.compile(r"(embeddings\.(position_ids|token_type_ids)|rotary_emb\.inv_freq)$")
"""Buffers that some files store: position ids, segment ids and rotary frequencies."""


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """Tables from the names of modules or parameters of `heads.Model` to those of a family's model folders."""

    prefix: str = ""
    """Beginning of the names of the encoder's tensors, such as `bert.`, which files without heads omit."""
    former: str = ""
    """Prefix of older files."""
    encoder: Mapping[str, str]
    """Names in the encoder -> names after the prefix."""
    layers: str
    """Part of a name between the prefix and the number of a block."""
    block: Mapping[str, str]
    """Names in a block -> names after its number."""
    pooler: str = "pooler"
    """Name of the pooler, with the prefix if it has one."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Names in heads, such as `mlm.dense` -> names in the folder. Those of `label` also hold for `multilabel` and
    `value`."""
    decoder: str = ""
    """Name of the masked-LM decoder, under which files may hold copies of the tied weights. Empty: it is not tied."""

    @property
    def layer(self) -> str:
        """Part of a name before the number of a block."""
        return self.prefix + self.layers

    @cached_property
    def tied(self) -> dict[str, str]:
        """Names of copies of tied tensors that files may hold -> names of the originals."""
        originals = {"weight": "encoder.words.weight", "bias": "heads.mlm.bias"} if self.decoder else {}
        found = {f"{self.decoder}.{kind}": self.to_folder(original) for kind, original in originals.items()}
        return {copy: original for copy, original in found.items() if copy != original}

    def to_folder(self, name: str) -> str:
        """Returns the name in a model folder of a parameter of `heads.Model`. A parameter in no table keeps its name,
        with the prefix before it in the encoder."""
        block = re.match(r"encoder\.blocks\.(\d+)\.", name)
        key = re.sub(r"^heads\.(multilabel|value)\.", "heads.label.", name)
        key = f"encoder.blocks.#.{name[block.end() :]}" if block else key
        parts = key.split(".")
        for count in range(len(parts), 0, -1):
            if theirs := self._table.get(".".join(parts[:count])):
                return ".".join([theirs.replace("#", block[1] if block else ""), *parts[count:]])
        return self.prefix + name if name.startswith("encoder.") else name

    def current(self, name: str) -> str:
        """Returns the current name of a tensor of an older file: gamma and beta are renamed, a former prefix is
        replaced and a missing one added. Empty for a tensor that is not a weight."""
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        if _NO_WEIGHTS.search(name):
            return ""
        if self.former and name.startswith(self.former):
            return self.prefix + name.removeprefix(self.former)
        return self.prefix + name if name.partition(".")[0] in self._first_parts else name

    @cached_property
    def _table(self) -> dict[str, str]:
        """Names in `heads.Model`, with # for the number of a block -> names in the folder."""
        encoder = {f"encoder.{ours}": theirs for ours, theirs in self.encoder.items()}
        encoder |= {f"encoder.blocks.#.{ours}": f"{self.layers}#.{theirs}" for ours, theirs in self.block.items()}
        heads = {f"heads.{ours}": theirs for ours, theirs in {**_HEADS, **self.heads}.items()}
        return {ours: self.prefix + theirs for ours, theirs in encoder.items()} | {"pooler": self.pooler} | heads

    @cached_property
    def _first_parts(self) -> set[str]:
        """First parts of the names of the encoder's tensors after the prefix."""
        inside = (name for name in self._table.values() if self.prefix and name.startswith(self.prefix))
        return {name.removeprefix(self.prefix).partition(".")[0] for name in inside}
