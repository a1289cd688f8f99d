"""The page in a real browser: what it shows for every task."""

import re
from typing import Any

import pytest

from tests.support.browsers import TEXT, choose, mocked, percent, rows, run
from tests.support.services import Service


def test_answer_is_highlighted(page: Any, service: Service) -> None:
    choose(page, "squad")
    run(page, Question="the king found", Context=TEXT)
    inputs = {"question": "the king found", "context": TEXT}
    output = service.ask("/predict", {"model": "squad", "inputs": inputs})[1]["outputs"][0]
    assert page.locator(".text mark").all_inner_texts() == [TEXT[output["start"] : output["end"]]] == [output["answer"]]
    assert page.locator(".headline").inner_text().split("\n") == [
        output["answer"],
        f"probability {percent(output['probability'])}",
    ]
    assert page.locator(".text").inner_text() == TEXT
    assert re.search(r"^\d+ ms|^\d+\.\d s", page.locator("#timing").inner_text())
    assert output["answer"] in page.locator("#say").inner_text()


def test_candidates_are_shown_in_the_context(page: Any) -> None:
    best = {"answer": "king", "probability": 0.5, "start": 6, "end": 10}
    others = [("king", 6, 10, 0.5), ("boat", 19, 23, 0.3), ("", 0, 0, 0.2)]
    names = ("text", "start", "end", "probability")
    best["candidates"] = [dict(zip(names, row, strict=True)) for row in others]
    mocked(page, "predict", {"model": "squad", "version": "v", "outputs": [best]})
    choose(page, "squad")
    run(page, Question="the king found", Context=TEXT)
    buttons = page.locator(".candidates button")
    assert buttons.all_inner_texts() == ["king\n50.0%", "boat\n30.0%", "No answer\n20.0%"]
    assert buttons.nth(0).get_attribute("aria-pressed") == "true"
    buttons.nth(1).click()
    assert page.locator(".text mark").all_inner_texts() == ["boat"]
    assert [button.get_attribute("aria-pressed") for button in buttons.all()] == ["false", "true", "false"]
    buttons.nth(2).click()
    assert page.locator(".text mark").count() == 0
    assert page.locator(".text").inner_text() == TEXT


def test_no_answer_is_said(page: Any) -> None:
    output = {"answer": "", "probability": 0.875, "null_odds": 3.2}
    mocked(page, "predict", {"model": "squad", "version": "v", "outputs": [output]})
    choose(page, "squad")
    run(page)
    assert page.locator("#output").inner_text().split("\n")[:2] == ["No answer", "probability 87.5%"]


def test_tags_are_spans_with_a_legend(page: Any, service: Service) -> None:
    output = service.ask("/predict", {"model": "tag", "inputs": TEXT})[1]["outputs"][0]
    output["tags"] = ["name" if word == "king" else "thing" if word == "boat" else "O" for word in output["tokens"]]
    mocked(page, "predict", {"model": "tag", "version": "v", "outputs": [output]})
    choose(page, "tag")
    run(page, Text=TEXT)
    expected = [
        f"{TEXT[start:end]}\u00a0{tag}" for (start, end), tag in zip(output["offsets"], output["tags"], strict=True)
        if tag not in (None, "O")
    ]  # fmt: skip
    assert page.locator("mark.tag").all_inner_texts() == expected
    kinds = {line.split()[-1] for line in expected}
    legend = dict(line.split() for line in page.locator(".legend li").all_inner_texts())
    assert legend == {kind: str(sum(line.endswith(kind) for line in expected)) for kind in kinds}
    colours = page.eval_on_selector_all("mark.tag", "marks => marks.map(m => getComputedStyle(m).backgroundColor)")
    assert len(set(colours)) == len(kinds)


def test_spans_of_several_words_are_one(page: Any) -> None:
    spans = [{"label": "PER", "start": 2, "end": 10, "text": "the king"}, {"label": "PER", "start": 5, "end": 8}]
    output = {"tokens": [], "offsets": [], "tags": [], "spans": spans}
    mocked(page, "predict", {"model": "tag", "version": "v", "outputs": [output]})
    choose(page, "tag")
    run(page, Text=TEXT)
    assert page.locator("mark.tag").all_inner_texts() == ["the king\u00a0PER"]


def test_labels_are_bars(page: Any, service: Service) -> None:
    choose(page, "classify")
    run(page, Text=TEXT)
    output = service.ask("/predict", {"model": "classify", "inputs": TEXT})[1]["outputs"][0]
    chances = sorted(output["probabilities"].items(), key=lambda row: -row[1])
    assert rows(page) == [(label, percent(chance)) for label, chance in chances]
    assert page.locator(".marked .name").inner_text() == output["label"]
    wide = page.locator(".marked .track").bounding_box()["width"]
    assert page.locator(".marked .fill").bounding_box()["width"] / wide == pytest.approx(chances[0][1], abs=0.01)


def test_several_labels_and_many_labels(page: Any, service: Service) -> None:
    choose(page, "multilabel")
    run(page, Text=TEXT)
    output = service.ask("/predict", {"model": "multilabel", "inputs": TEXT})[1]["outputs"][0]
    assert sorted(page.locator(".marked .name").all_inner_texts()) == sorted(output["labels"])
    many = {f"label {number}": number / 100 for number in range(60)}
    mocked(page, "predict", {"model": "m", "version": "v", "outputs": [{"labels": [], "probabilities": many}]})
    run(page)
    assert "No label reaches its threshold" in page.locator("#output").inner_text()
    assert page.locator(".bars li").count() == 12
    page.get_by_role("button", name="Show 48 more").click()
    assert page.locator(".bars li").count() == 60
    assert page.evaluate("document.activeElement.querySelector('.name').textContent") == "label 47"


def test_a_value_is_a_number(page: Any, service: Service) -> None:
    choose(page, "regress")
    run(page, Text=TEXT)
    output = service.ask("/predict", {"model": "regress", "inputs": TEXT})[1]["outputs"][0]
    assert page.locator(".headline").inner_text().replace("−", "-") == f"{output['value']:.3f}"


def test_choices_are_bars(page: Any, service: Service) -> None:
    choose(page, "choice")
    run(page, Text=TEXT, Choices="a boat\n\n a garden \na stone")
    inputs = {"text": TEXT, "choices": ["a boat", "a garden", "a stone"]}
    output = service.ask("/predict", {"model": "choice", "inputs": inputs})[1]["outputs"][0]
    expected = zip(inputs["choices"], map(percent, output["probabilities"]), strict=True)
    assert rows(page) == list(expected)
    assert page.locator(".headline strong").inner_text() == inputs["choices"][output["choice"]]
    run(page, Choices="one")
    assert "at least two" in page.locator("#output").inner_text()


def test_pairs_have_two_fields(page: Any, service: Service) -> None:
    choose(page, "pair")
    run(page, One="the bird walked slowly", Two=TEXT)
    inputs = {"one": "the bird walked slowly", "two": TEXT}
    output = service.ask("/predict", {"model": "pair", "inputs": inputs})[1]["outputs"][0]
    assert page.locator(".marked .name").inner_text() == output["label"]


def test_masks_are_filled_in(page: Any, service: Service) -> None:
    text = "the [MASK] found a boat near the [MASK] road"
    choose(page, "mask")
    run(page, Text=text)
    masks = service.ask("/predict", {"model": "mask", "inputs": text})[1]["outputs"][0]["masks"]
    first, second = ([candidate["token"] for candidate in candidates] for candidates in masks)
    assert page.locator(".text mark").all_inner_texts() == [first[0], second[0]]
    lists = page.locator(".candidates")
    lists.nth(1).get_by_role("button").nth(2).click()
    assert page.locator(".text mark").all_inner_texts() == [first[0], second[2]]
    page.get_by_role("button", name="Put into the input").click()
    joined = f"the {first[0]} found a boat near the {second[2]} road".replace(" ##", "")
    assert page.get_by_label("Text", exact=True).input_value() == joined
    assert page.locator("#stale").is_visible()
    run(page)
    assert "Write [MASK]" in page.locator("#output").inner_text()
    page.get_by_label("Text", exact=True).press("End")
    page.get_by_role("button", name="Insert [MASK]").click()
    assert page.get_by_label("Text", exact=True).input_value() == joined + "[MASK]"


def test_similarity_and_relevance(page: Any, service: Service) -> None:
    texts = ["the bird walked slowly", "a boat", "the king found a boat"]
    choose(page, "embed")
    run(page, Text=TEXT, Texts_to_compare_with="\n".join(texts))
    body = {"model": "embed", "source": TEXT, "sentences": texts}
    found = dict(zip(texts, service.ask("/similarity", body)[1]["similarities"], strict=True))
    expected = [(text, f"{found[text]:.3f}") for text in sorted(texts, key=found.__getitem__, reverse=True)]
    assert [(name, value.replace("−", "-")) for name, value in rows(page)] == expected
    for model in ("embed", "pair"):
        choose(page, model, "Relevance")
        run(page, Question=TEXT, Texts_to_sort="\n".join(texts))
        body = {"model": model, "query": TEXT, "documents": texts}
        ranked = service.ask("/rerank", body)[1]["results"]
        assert [name for name, _ in rows(page)] == [texts[row["index"]] for row in ranked]
