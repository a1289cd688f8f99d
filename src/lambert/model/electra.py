"""The ELECTRA family (Clark et al., 2020): BERT's encoder, whose embeddings may be narrower than its states.

Lambert fine-tunes the discriminator, and does not pre-train it to detect replaced tokens.
"""

from dataclasses import replace
from functools import partial

from torch.nn.functional import gelu

from lambert.model.bert import BERT
from lambert.model.config_keys import architectures
from lambert.model.objectives import Label, MakeHead, MaskedLanguageModel, MultiLabel, Pooler, Value

HEADS: dict[str, MakeHead] = {
    "mlm": partial(MaskedLanguageModel, activation="none"),
    "label": partial(Label, activation=gelu),
    "multilabel": partial(MultiLabel, activation=gelu),
    "value": partial(Value, activation=gelu),
}
NAMES = replace(
    BERT.names,
    prefix="electra.",
    encoder={**BERT.names.encoder, "widen": "embeddings_project"},
    pooler="sequence_summary.summary",
    heads={
        "mlm.dense": "generator_predictions.dense",
        "mlm.norm": "generator_predictions.LayerNorm",
        "mlm.bias": "generator_lm_head.bias",
        "label.dense": "classifier.dense",
        "label.classifier": "classifier.out_proj",
    },
    decoder="generator_lm_head",
)
ARCHITECTURES = {
    **architectures("Electra"),
    "ElectraForPreTraining": (),  # read only: the discriminator, whose head is ignored
}
KEYS = replace(
    BERT.keys,
    fields={**BERT.keys.fields, "embedding": "embedding_size"},
    defaults={**BERT.keys.defaults, "embedding": 128},
    written={
        **BERT.keys.written, "summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    },
    read=lambda found, settings, path: {"embedding": 0} if found["embedding"] == found["hidden"] else {},
    write=lambda config: {"embedding_size": config.table_width},
)  # fmt: skip
ELECTRA = replace(
    BERT,
    title="ELECTRA",
    heads=HEADS,
    pooler=partial(Pooler, activation=gelu),
    names=NAMES,
    keys=KEYS,
    architectures=ARCHITECTURES,
)
