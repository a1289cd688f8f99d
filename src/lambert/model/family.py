"""The record of a family of encoders, through which the rest of Lambert uses it."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.config_keys import ConfigKeys
from lambert.model.costs import Costs
from lambert.model.encoder import Encoder
from lambert.model.objectives import MakeHead, Pooler
from lambert.model.tensor_names import TensorNames

ADJUSTABLE = frozenset({"dropout", "attention_dropout"})
"""Settings on which no weight depends in any family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The modules, the model folder and the costs of a family of encoders. `families.FAMILIES` has all by name."""

    title: str
    """Name for messages and model cards, such as BERT."""
    encoder: type[Encoder]
    """Class of the encoder, made from an EncoderConfig."""
    heads: Mapping[str, MakeHead] = field(default_factory=dict)
    """Heads by objective, where they differ from `objectives.HEADS`."""
    pooler: Callable[[EncoderConfig], nn.Module] = Pooler
    """Module from (states [T, D], batch) to one row per sequence [S, D], made from an EncoderConfig."""
    pools_last: Callable[[EncoderConfig], bool] = lambda config: False
    """Whether the layer of the pooler reads the states of all tokens, and its outputs are pooled."""
    defaults: Mapping[str, float | ModernConfig] = field(default_factory=dict)
    """Defaults of a fresh encoder's settings where they differ from those of EncoderConfig."""
    determine: Callable[[EncoderConfig], EncoderConfig] = lambda config: config
    """Function that adds to a fresh encoder's settings what the family determines, apart from `keys.constants`."""
    adjustable: frozenset[str] = ADJUSTABLE
    """Settings, by dotted names, that a run may change when it starts from a model, because no weight depends on
    them."""
    initial_deviation: Callable[[EncoderConfig, str], float] = lambda config, name: config.init_range
    """Function from (config, name of a parameter of `heads.Model`) to the standard deviation of its initial weights."""
    truncated: bool = False
    """Whether transformers truncates the initial weights of the heads of tasks at two standard deviations."""
    segments: bool = True
    """Whether the family was published with segments. If so, pairs of texts need two segment types."""

    names: TensorNames
    """Names of the tensors in a model folder."""
    keys: ConfigKeys
    """Keys of config.json for the encoder."""
    architectures: Mapping[str, tuple[str, ...]]
    """`architectures` of config.json and their heads. A folder names the first architecture all of whose heads the
    model has; one of them must have no head."""

    own_heads: frozenset[str] = frozenset()
    """Heads of `architectures` for which transformers (5.23) has no class in this family. It reads such a folder as an
    encoder without a head."""

    costs: Costs
    """Formulas of an encoder's costs."""
    kernels_lack: Callable[[EncoderConfig], str]
    """Function that returns what the compiled kernels lack to train the blocks, in words; empty: nothing."""

    def complete(self, config: EncoderConfig) -> EncoderConfig:
        """Returns the settings of a fresh encoder with what the family determines. Raises UsageError if the family has
        no such encoder."""
        return self.determine(dataclasses.replace(config, **self.keys.constants))
