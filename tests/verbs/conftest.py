"""Corpora with tokenizers of each kind, made when they are first asked for."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

import lambert
from lambert.corpus.tokens import tokenizer as tokenizers

PIECES = {"bpe": 300, "unigram": 120, "wordpiece": 160}


def of_mpnet(corpus: Path, out: Path) -> Path:
    """A tokenizer with MPNet's names, template and first ids, of the pieces of another one."""
    values = tokenizers.described(tokenizers.load(corpus))
    names = {"[PAD]": "<s>", "[UNK]": "<pad>", "[CLS]": "</s>", "[SEP]": "[UNK]", "[MASK]": "<mask>"}
    for token in values["added_tokens"]:
        token["content"] = names[token["content"]]
    values["model"]["vocab"] = {names.get(piece, piece): n for piece, n in values["model"]["vocab"].items()}
    tokenizer = Tokenizer.from_str(tokenizers._serialised(values))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0 </s>:0", pair="<s>:0 $A:0 </s>:0 </s>:0 $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    tokenizers.save(tokenizer, out)
    return out


def of_roberta(corpus: Path, out: Path) -> Path:
    """A tokenizer with the names and the template of RoBERTa and XLM-R, of the pieces of another one."""
    values = tokenizers.described(tokenizers.load(corpus))
    names = {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[MASK]": "<mask>", "[UNK]": "<unk>"}
    for token in values["added_tokens"]:
        token["content"] = names[token["content"]]
    vocabulary = values["model"]["vocab"]
    ids = {token["content"]: token["id"] for token in values["added_tokens"]}
    if isinstance(vocabulary, dict):
        values["model"]["vocab"] = {names.get(piece, piece): number for piece, number in vocabulary.items()}
    else:
        values["model"]["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    values["post_processor"] = {
        "type": "RobertaProcessing", "sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]],
        "trim_offsets": True, "add_prefix_space": False,
    }  # fmt: skip
    tokenizers.save(Tokenizer.from_str(tokenizers._serialised(values)), out)
    return out


RENAMED = {"mpnet": (of_mpnet, "wordpiece"), "roberta": (of_roberta, "bpe"), "xlm-r": (of_roberta, "unigram")}
"""The tokenizers that are made of another one, and which one."""


class Corpora(dict[str, Path]):
    """The documents of the fixture `texts` prepared with a tokenizer of each kind."""

    def __init__(self, texts: Path, folder: Path) -> None:
        self.texts, self.folder = texts, folder

    def __missing__(self, kind: str) -> Path:
        learnt = {"tokenizer_kind": kind, "vocabulary": PIECES.get(kind)}
        if kind in RENAMED:
            of, source = RENAMED[kind]
            learnt = {"tokenizer": str(of(self[source], self.folder / f"{kind}-tokenizer"))}
        self[kind] = self.folder / kind
        lambert.prepare(input=(self.texts,), out=self[kind], documents="line", heldout=0.2, workers=1, **learnt)
        return self[kind]


@pytest.fixture(scope="session")
def corpora(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    """`corpora[kind]`: kinds are those of PIECES and RENAMED."""
    return Corpora(texts, tmp_path_factory.mktemp("corpora"))
