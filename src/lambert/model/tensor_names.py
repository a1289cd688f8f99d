"""The names of a family's tensors in model folders: from tables of modules, with those that older files have."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

_HEADS = {
    "label.classifier": "classifier", "choice.classifier": "classifier", "tag.classifier": "classifier",
    "span.classifier": "qa_outputs",
}  # fmt: skip
"""The layers before the logits, which most families name so."""
_NO_WEIGHTS = re.compile(r"(embeddings\.(position_ids|token_type_ids)|rotary_emb\.inv_freq)$")
"""Numbers of positions and segment types, and angles of the rotation."""


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """How the tensors in the model folders of a family are named. The tables name modules or parameters."""

    prefix: str = ""
    """Beginning of the names of the encoder's tensors, such as `bert.`, which files without heads omit."""
    former: str = ""
    """What older files have in its place."""
    encoder: Mapping[str, str]
    """Names in the encoder, and those after the prefix."""
    layers: str
    """What stands between the prefix and the number of a block."""
    block: Mapping[str, str]
    """Names in a block, and those after its number."""
    pooler: str = "pooler"
    """Name of the pooler, with the prefix if it has one."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Names in heads, such as `mlm.dense`, and those in the folder. Those of `label` are also for `multilabel` and
    `value`."""
    decoder: str = ""
    """Layer of the masked-LM logits, of which files may hold copies of the tied weights. Empty: they are not tied."""

    @property
    def layer(self) -> str:
        """What precedes the number of a block."""
        return self.prefix + self.layers

    @cached_property
    def tied(self) -> dict[str, str]:
        """Names of tensors that files may hold as copies, and what they are copies of."""
        originals = {"weight": "encoder.words.weight", "bias": "heads.mlm.bias"} if self.decoder else {}
        found = {f"{self.decoder}.{kind}": self.to_folder(original) for kind, original in originals.items()}
        return {copy: original for copy, original in found.items() if copy != original}

    def to_folder(self, name: str) -> str:
        """Returns the name of a parameter of `heads.Model` in a model folder. Parameters that no table names keep their
        names, those of the encoder after the prefix."""
        block = re.match(r"encoder\.blocks\.(\d+)\.", name)
        key = re.sub(r"^heads\.(multilabel|value)\.", "heads.label.", name)
        key = f"encoder.blocks.#.{name[block.end() :]}" if block else key
        parts = key.split(".")
        for count in range(len(parts), 0, -1):
            if theirs := self._table.get(".".join(parts[:count])):
                return ".".join([theirs.replace("#", block[1] if block else ""), *parts[count:]])
        return self.prefix + name if name.startswith("encoder.") else name

    def current(self, name: str) -> str:
        """Returns the name that files of today have for a tensor: gamma and beta are renamed, and a former prefix is
        replaced or a missing one added. Empty for a tensor that is no weight."""
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        if _NO_WEIGHTS.search(name):
            return ""
        if self.former and name.startswith(self.former):
            return self.prefix + name.removeprefix(self.former)
        return self.prefix + name if name.partition(".")[0] in self._first_parts else name

    @cached_property
    def _table(self) -> dict[str, str]:
        """Names of modules of `heads.Model`, with # as the number of a block, and those in the folder."""
        encoder = {f"encoder.{ours}": theirs for ours, theirs in self.encoder.items()}
        encoder |= {f"encoder.blocks.#.{ours}": f"{self.layers}#.{theirs}" for ours, theirs in self.block.items()}
        heads = {f"heads.{ours}": theirs for ours, theirs in {**_HEADS, **self.heads}.items()}
        return {ours: self.prefix + theirs for ours, theirs in encoder.items()} | {"pooler": self.pooler} | heads

    @cached_property
    def _first_parts(self) -> set[str]:
        """What the names of the encoder's tensors begin with after the prefix."""
        inside = (name for name in self._table.values() if self.prefix and name.startswith(self.prefix))
        return {name.removeprefix(self.prefix).partition(".")[0] for name in inside}
