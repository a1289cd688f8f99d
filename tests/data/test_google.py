"""Google's instances, draw for draw."""

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from lambert.core.specials import Specials, Template
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.google import create_instances
from lambert.data.packing import Outline
from lambert.data.source import CorpusSource

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "google_create_pretraining.json").read_text())
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES += [f"t{n}" for n in range(50)] + [f"##t{n}" for n in range(50)]
INSIDE = np.array([piece.startswith("##") for piece in PIECES])
SPECIALS = Specials(Template(2, 3), 1, 4, len(PIECES), INSIDE, np.zeros_like(INSIDE))


def golden_corpus(write_corpus):
    """The corpus that tests/golden/README.md describes."""
    number = {piece: n for n, piece in enumerate(PIECES)}
    return write_corpus(
        [
            [
                [
                    number[("##" if k % 4 == 3 else "") + f"t{(37 * d + 11 * s + 7 * k) % 50}"]
                    for k in range(3 + (5 * d + 7 * s) % 13)
                ]
                for s in range(1 + 3 * d % 7)
            ]
            for d in range(7)
        ],
        vocabulary=len(PIECES),
    )


def settings(name):
    arguments = GOLDEN[name]["args"]
    packing = PackingConfig(mode="google", sequence_length=arguments.get("maxlen", 32), duplicates=2)
    masking = MaskingConfig(whole_word=arguments.get("wwm", False), max_predictions=arguments.get("maxpred", 5))
    return packing, masking


def as_golden(ids, types, label, positions, labels):
    return {
        "tokens": [PIECES[n] for n in ids],
        "segment_ids": types,
        "is_random_next": bool(label),
        "pos": positions,
        "labels": [PIECES[n] for n in labels],
    }


def digest(instances):
    return hashlib.sha256(json.dumps(instances, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@pytest.mark.parametrize("name", ["base", "wwm", "long"])
def test_a_source_gives_the_instances_of_the_original_code(write_corpus, name):
    source = CorpusSource(golden_corpus(write_corpus), *settings(name), SPECIALS, 12345)
    size = source.size(0)
    batch = source.collate(np.zeros(size, dtype=int), np.arange(size))
    bounds, mlm = batch.bounds_S1.tolist(), batch.targets["mlm"]
    instances = []
    for s, (low, high) in enumerate(pairwise(bounds)):
        here = (mlm.at_N >= low) & (mlm.at_N < high)
        instances.append(
            as_golden(
                batch.ids_T[low:high].tolist(),
                batch.types_T[low:high].tolist(),
                batch.targets["nsp"].labels_N[s],
                (mlm.at_N[here] - low).tolist(),
                mlm.labels_N[here].tolist(),
            )
        )
    golden = GOLDEN[name]
    assert instances[:3] == golden["first"]
    assert (len(instances), digest(instances)) == (golden["n"], golden["sha256"])


def test_masks_are_fixed_and_do_not_depend_on_the_batch(write_corpus):
    source = CorpusSource(golden_corpus(write_corpus), *settings("base"), SPECIALS, 12345)
    together = source.collate(np.zeros(5, dtype=int), np.array([4, 0, 9, 2, 4]))
    apart = [source.collate(np.array([epoch]), np.array([i])) for epoch, i in enumerate([4, 0, 9, 2, 4])]
    assert together.ids_T.tolist() == [n for batch in apart for n in batch.ids_T.tolist()]
    labels = [n for batch in apart for n in batch.targets["mlm"].labels_N.tolist()]
    assert together.targets["mlm"].labels_N.tolist() == labels


def test_one_document_draws_its_random_segments_from_itself(write_corpus):
    outline = Outline(write_corpus([[[7] * 9, [8] * 9, [9] * 9]]))
    specials = Specials(Template(2, 3), 1, 4, 1000, *np.zeros((2, 1000), dtype=bool))
    instances = create_instances(outline, PackingConfig(mode="google"), MaskingConfig(), specials, Random(1))
    assert {instance.label for instance in instances} == {0, 1}


@pytest.mark.parametrize("mask_share", [0.0, 1.0])
def test_shares_at_the_limits(write_corpus, specials, mask_share):
    outline = Outline(write_corpus([[[7] * 90], [[8] * 90]]))
    masking = MaskingConfig(mask_share=mask_share, random_share=0.0)
    instances = create_instances(outline, PackingConfig(mode="google"), masking, specials, Random(1))
    replaced = {new for instance in instances for new in instance.replacements}
    assert replaced == ({4} if mask_share else {7, 8})


@pytest.mark.parametrize("first", [8, 695])
def test_no_word_continues_after_a_mark(first, write_corpus, specials):
    outline = Outline(write_corpus([[[first, 800] * 20], [[first, 800] * 20]]))
    masking = MaskingConfig(whole_word=True, max_predictions=4)
    instances = create_instances(outline, PackingConfig(mode="google"), masking, specials, Random(1))
    pairs = [  # of segment A: whether both pieces are masked alike
        (p in one.positions) == (p + 1 in one.positions)
        for one in instances
        for p in range(1 + one.a_start % 2, one.a_length, 2)
    ]
    assert specials.continuation_V[800]
    assert all(pairs) == (not specials.closing_V[first])
