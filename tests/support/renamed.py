"""Tokenizers of families made from learnt ones: their names of special tokens, and where these stand."""

from pathlib import Path

from tokenizers import Tokenizer, processors

from lambert.text.tokenizers import tokenizer as tokenizers


def of_mpnet(corpus: Path, out: Path) -> Path:
    """A tokenizer with MPNet's names, template and first ids, of the pieces of another one."""
    values = tokenizers.describe(tokenizers.load(corpus))
    names = {"[PAD]": "<s>", "[UNK]": "<pad>", "[CLS]": "</s>", "[SEP]": "[UNK]", "[MASK]": "<mask>"}
    for token in values["added_tokens"]:
        token["content"] = names[token["content"]]
    values["model"]["vocab"] = {names.get(piece, piece): n for piece, n in values["model"]["vocab"].items()}
    tokenizer = Tokenizer.from_str(tokenizers._serialise(values))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0 </s>:0", pair="<s>:0 $A:0 </s>:0 </s>:0 $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    tokenizers.save(tokenizer, out)
    return out


def of_roberta(corpus: Path, out: Path) -> Path:
    """A tokenizer with the names and the template of RoBERTa and XLM-R, of the pieces of another one."""
    values = tokenizers.describe(tokenizers.load(corpus))
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
    tokenizers.save(Tokenizer.from_str(tokenizers._serialise(values)), out)
    return out


RENAMED = {"mpnet": (of_mpnet, "wordpiece"), "roberta": (of_roberta, "bpe"), "xlm-r": (of_roberta, "unigram")}
"""The tokenizers that are made of another one, and which one."""
