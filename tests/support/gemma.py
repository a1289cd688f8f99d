"""A small tokenizer of Gemma's kind, which mmBERT has too, as transformers' GemmaTokenizer describes it.

BPE over whole texts in which each space is U+2581, with pieces for bytes, tokens of several spaces and of markup,
unused pieces, and <bos> and <eos> around each text.
"""

import json
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
OTHERS = [
    "[multimodal]",
    *(f"<unused{number}>" for number in range(5)),
    "<table>",
    "\u2581\u2581",
    "\u2581\u2581\u2581",
]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def gemma(texts: Iterable[str], pieces: int, alphabet: int = 60) -> Tokenizer:
    """Returns a tokenizer with so many pieces, and with pieces for the most frequent characters of the texts. Other
    characters are written as bytes."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    first = [*SPECIALS, *OTHERS, *BYTES]
    trainer = trainers.BpeTrainer(
        vocab_size=pieces, special_tokens=first, limit_alphabet=alphabet, initial_alphabet=["\u2581", "<", ">"],
        show_progress=False,
    )  # fmt: skip
    learner.train_from_iterator((f" {text}" for text in texts), trainer)
    values = json.loads(learner.to_str())
    values["model"] |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    values["model"]["merges"] = [["\u2581", "\u2581"], ["\u2581\u2581", "\u2581"], *values["model"]["merges"]]
    added = [token for token in values["added_tokens"] if token["content"] not in BYTES]
    values["added_tokens"] = [token | {"special": token["content"] in SPECIALS} for token in added]
    tokenizer = Tokenizer.from_str(json.dumps(values))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos>:0 $A:0 <eos>:0", pair="<bos>:0 $A:0 <eos>:0 <bos>:1 $B:1 <eos>:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<bos>", "<eos>")],
    )  # fmt: skip
    tokenizer.encode_special_tokens = True
    return tokenizer
