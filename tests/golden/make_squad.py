"""Writes squad.json.gz: what transformers 4.57.6 makes of SQuAD paragraphs, for tests/tasks/squad.

    python -m venv oracle && oracle/bin/pip install transformers==4.57.6 numpy
    oracle/bin/python tests/golden/make_squad.py VOCAB.txt DEV-1.1.json.gz DEV-2.0.json.gz PREDICTIONS-2.0.json.gz

Version 5 has no SQuAD processing any more; 4.57.6 has, and runs it without torch.
"""

import gzip
import json
import logging
import random
import sys
import tempfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from transformers import BertTokenizer
from transformers.data.metrics.squad_metrics import compute_predictions_logits, squad_evaluate
from transformers.data.processors import squad as processing

CASES = [  # name, max_length, stride, max_query
    ("wide", 384, 128, 64),
    ("narrow", 96, 32, 24),
]


def check(value):
    return zlib.crc32(json.dumps(value).encode())


def logits(ids):
    """A formula that both sides can follow exactly in float32: quarters, so that there are ties."""
    ids = np.array(ids, dtype=np.int64)
    mixed = np.stack([(ids * 7919 + np.arange(len(ids)) * 31 + side * 17) % 97 for side in (0, 1)], 1)
    return (mixed / 4.0 - 12.0).astype(np.float32)


def sample(path, count):
    with gzip.open(path) as file:
        root = json.load(file)
    paragraphs = [paragraph for article in root["data"] for paragraph in article["paragraphs"]]
    chosen = random.Random(4).sample(paragraphs, count)
    for paragraph in chosen:
        paragraph["qas"] = [paragraph["qas"][0], paragraph["qas"][-1]][: len(paragraph["qas"])]
    return {"version": str(root["version"]).removeprefix("v"), "data": [{"title": "sample", "paragraphs": chosen}]}


def small_vocabulary(path, files):
    """The pieces that the paragraphs and questions use, and all single characters: 30,522 would be 230 kB."""
    tokenizer = BertTokenizer(path)
    pieces = {piece for piece in tokenizer.vocab if len(piece.removeprefix("##")) == 1 and piece.isascii()}
    for file in files:
        for paragraph in file["data"][0]["paragraphs"]:
            for text in (paragraph["context"], *(question["question"] for question in paragraph["qas"])):
                pieces.update(tokenizer.tokenize(text))
    rare = {piece for piece in pieces if zlib.crc32(piece.encode()) % 5 == 0 and len(piece.removeprefix("##")) > 1}
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return specials + sorted(pieces - rare - set(specials))


def main(vocabulary, dev_1, dev_2, predictions_2):
    logging.disable(logging.WARNING)
    files = [sample(dev_1, 110), sample(dev_2, 95)]
    pieces = small_vocabulary(vocabulary, files)
    folder = Path(tempfile.mkdtemp())
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = BertTokenizer(folder / "vocab.txt", do_lower_case=True, model_max_length=512)
    processing.squad_convert_example_to_features_init(tokenizer)
    golden = {"vocabulary": pieces, "files": files, "features": {}, "answers": {}}
    for file in files:
        two = file["version"].startswith("2")
        reader = processing.SquadV2Processor() if two else processing.SquadV1Processor()
        for name, max_length, stride, max_query in CASES:
            examples = reader._create_examples(file["data"], "train")
            features, results, rows = [], [], []
            for number, example in enumerate(examples):
                made = processing.squad_convert_example_to_features(
                    example, max_length, stride, max_query, "do_not_pad", True
                )
                ids, best, words = [], [], []
                for feature in made:
                    feature.example_index, feature.unique_id = number, len(features)
                    z = logits(feature.input_ids).T.tolist()
                    results.append(SimpleNamespace(unique_id=len(features), start_logits=z[0], end_logits=z[1]))
                    features.append(feature)
                    ids.append(feature.input_ids)
                    best.append([place for place, yes in feature.token_is_max_context.items() if yes])
                    words.append(list(feature.token_to_orig_map.values()))
                spans = [[feature.start_position, feature.end_position] for feature in made]
                rows.append([check([ids, best, words]), spans])
            golden["features"][f"{file['version']} {name}"] = rows
            nbest, odds = folder / "nbest.json", folder / "odds.json"
            said = compute_predictions_logits(
                examples,
                features,
                results,
                20,
                30,
                True,
                str(folder / "said.json"),
                str(nbest),
                str(odds),
                False,
                two,
                -30.0,
                tokenizer,
            )
            golden["answers"][f"{file['version']} {name}"] = {
                "texts": list(said.values()),
                "nbest": check(
                    [[entry["text"] for entry in entries] for entries in json.loads(nbest.read_text()).values()]
                ),
                "odds": check(list(json.loads(odds.read_text()).values())) if two else None,
            }
    with gzip.open(predictions_2) as file:
        published = json.load(file)
    examples = processing.SquadV2Processor()._create_examples(files[1]["data"], "dev")
    golden["published"] = {example.qas_id: published[example.qas_id] for example in examples}
    golden["published_scores"] = squad_evaluate(examples, golden["published"])
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    with gzip.GzipFile(Path(__file__).with_name("squad.json.gz"), "wb", mtime=0) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
