"""The page in a real browser: every task, by clicks and keys, on all screens, and whatever the service answers."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsers import PHONE, chromium, faults, opened
from tests.support.services import Service, serving

Tuned = Callable[[str], Path]
TASKS = ("squad", "tag", "classify", "multilabel", "regress", "choice", "pair", "embed")
FAILED_LOAD = "Failed to load resource"
TEXT = "😀 the king found a boat near the old road"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def service(browser: Any, tuned: Tuned, pretrained: Path) -> Iterator[Service]:
    models = [*(f"{task}={tuned(task)}" for task in TASKS), f"mask={pretrained}"]
    with serving(*models, precision="float32") as running:
        yield running
        running.end()


@pytest.fixture
def page(browser: Any, service: Service) -> Iterator[Any]:
    with opened(browser, service.url) as found:
        found.wait_for_selector("#model")
        yield found


def choose(page: Any, model: str, tab: str = "") -> None:
    page.get_by_label("Model", exact=True).select_option(model)
    if tab:
        page.get_by_role("tab", name=tab).click()


def run(page: Any, **texts: str) -> None:
    """Writes texts into the fields by their labels, and runs."""
    for label, text in texts.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(text)
    page.locator("#run").click()
    page.wait_for_selector("#result[aria-busy=false]")


def rows(page: Any) -> list[tuple[str, str]]:
    items = page.locator(".bars li")
    return [(items.nth(at).locator(".name").inner_text(), items.nth(at).locator(".value").inner_text())
            for at in range(items.count())]  # fmt: skip


def percent(share: float) -> str:
    return f"{100 * share:.1f}%" if 0.001 <= share <= 0.999 else "> 99.9%" if share > 0.5 else "< 0.1%"


def mocked(page: Any, path: str, answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
    body = answer if isinstance(answer, str) else json.dumps(answer)
    page.route(f"**/{path}", lambda route: route.fulfill(status=status, body=body, headers=headers or {}))


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
    choose(page, "tag")
    run(page, Text=TEXT)
    output = service.ask("/predict", {"model": "tag", "inputs": TEXT})[1]["outputs"][0]
    expected = [
        f"{TEXT[start:end]}\u00a0{tag}" for (start, end), tag in zip(output["offsets"], output["tags"], strict=True)
        if tag not in (None, "O")
    ]  # fmt: skip
    assert expected
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


def test_examples_run_at_once(page: Any) -> None:
    for model in (*TASKS, "mask"):
        choose(page, model)
        for tab in range(page.get_by_role("tab").count()):
            page.get_by_role("tab").nth(tab).click()
            shown = page.locator("[data-key]").first.input_value()
            page.locator("#run").click()
            page.wait_for_selector("#timing:not(:empty)")
            page.get_by_role("button", name="Another example").click()
            assert page.locator("[data-key]").first.input_value() != shown
            assert "The answer appears here" in page.locator("#output").inner_text()


def test_texts_are_kept_and_changes_are_said(page: Any) -> None:
    choose(page, "classify")
    run(page, Text=TEXT)
    assert page.locator("#stale").is_hidden()
    page.get_by_label("Text", exact=True).fill("something else")
    assert page.locator("#stale").is_visible()
    page.get_by_label("Text", exact=True).fill(TEXT)
    assert page.locator("#stale").is_hidden()
    choose(page, "tag")
    choose(page, "classify")
    assert page.get_by_label("Text", exact=True).input_value() == TEXT
    assert page.url.endswith("#classify")
    page.reload()
    page.wait_for_selector("#model")
    assert page.get_by_label("Model", exact=True).input_value() == "classify"


def test_curl_is_the_same_request(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    choose(page, "squad")
    run(page, Question='the king\'s "boat" $HOME `ls`?', Context="it's\nthe king's boat \\ 😀")
    page.get_by_text("The same request with curl").click()
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied.").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    shell = f"curl() {{ printf '%s\\0' \"$@\"; }}; {command}"
    words = subprocess.run(["sh", "-c", shell], check=True, capture_output=True, text=True).stdout.split("\0")
    assert [words[1], words[2], words[3]] == ["-H", "Content-Type: application/json", "-d"]
    request = urllib.request.Request(words[0], words[4].encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer) == json.loads(page.locator("#json").text_content())


def test_keys_alone_are_enough(page: Any) -> None:
    focus = "document.activeElement.id || document.activeElement.textContent"
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(focus))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
    wanted = ["Skip to the model", "API description", "model", "tab-0", "field-0", "field-1", "run", "example"]
    assert [name for name in reached if name in wanted] == wanted
    page.locator("#model").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#model").input_value() == "tag"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    assert page.evaluate(focus) == "tab-2"
    assert page.locator("[aria-selected=true]").inner_text() == "Relevance"
    page.keyboard.press("ArrowRight")
    assert page.locator("[aria-selected=true]").inner_text() == "Tagging"
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("mark.tag")
    assert page.evaluate(focus) == "field-0"


def test_cancel_and_busy(page: Any) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/predict", hold)
    choose(page, "classify")
    for way in ("click", "Escape", "Enter"):
        page.locator("#run").click()
        page.get_by_text("Computing…").wait_for()
        assert page.locator("#result").get_attribute("aria-busy") == "true"
        page.locator("#run").click(force=True)
        if way == "click":
            page.get_by_role("button", name="Cancel").click()
        else:
            page.locator("#cancel" if way == "Enter" else "#run").press(way)
        page.locator("#output").get_by_text("Cancelled.").wait_for()
        assert page.locator("#cancel").is_hidden()
        assert page.evaluate("document.activeElement.id") == "run"
    assert len(held) == 3
    page.locator("#run").click()
    page.get_by_text("Computing…").wait_for()
    choose(page, "tag")
    assert page.locator("#cancel").is_hidden()
    page.unroute("**/predict")
    run(page)
    assert "mark" in page.locator("#output").inner_html()


@pytest.mark.parametrize(
    ("status", "answer", "headers", "gist"),
    [
        (429, {"error": "9,999 tokens are waiting."}, {"Retry-After": "7"}, ["too much work", "9,999", "again in 7 s"]),
        (413, {"error": "The body is larger than 8 bytes."}, {}, ["too large", "8 bytes"]),
        (503, {"error": "The service is ending."}, {"Retry-After": "1"}, ["could not answer", "is ending"]),
        (422, {"error": "Wrong.", "field": "inputs"}, {}, ["cannot read this input", "Wrong.", "inputs"]),
        (404, {"error": "There is no model of this name."}, {}, ["no model of this name"]),
        (502, "<html><b>Bad Gateway</b></html>", {}, ["cannot be reached", "<b>Bad Gateway</b>"]),
        (500, "Internal Server Error", {}, ["The service failed", "Internal Server Error"]),
        (418, {"detail": "a teapot"}, {}, ["418", "a teapot"]),
        (200, "", {}, ["cannot be read", "not JSON"]),
        (200, {"outputs": []}, {}, ["cannot show the answer"]),
        (200, [], {}, ["cannot show the answer"]),
        (200, {"outputs": [{"other": "<i>1</i>"}], "model": "m", "version": "v"}, {}, ["<i>1</i>"]),
    ],
)
def test_every_answer_is_shown(
    browser: Any, service: Service, status: int, answer: Any, headers: dict[str, str], gist: list[str]
) -> None:
    with opened(browser, service.url + "#classify", expected=FAILED_LOAD) as page:
        mocked(page, "predict", answer, status, headers)
        run(page)
        shown = page.locator("#output").inner_text()
        assert [part for part in gist if part not in shown] == [], shown
        assert page.locator("#say").inner_text() != ""
        assert faults(page) == []
        page.unroute("**/predict")
        run(page)
        assert page.locator(".bars").count() == 1


def test_an_input_that_the_model_cannot_read(browser: Any, service: Service) -> None:
    with opened(browser, service.url + "#mask", expected=FAILED_LOAD) as page:
        run(page, Text="the king " * 100 + "[MASK]")
        assert "no [MASK] in the first 62 tokens" in page.locator("#output").inner_text()
        assert page.get_by_label("Text", exact=True).get_attribute("aria-invalid") == "true"
        run(page, Text="")
        assert "write a text first" in page.locator("#output").inner_text()
        assert page.evaluate("document.activeElement.id") == "field-0"


def test_a_service_that_asks_for_a_key_and_then_ends(browser: Any, tuned: Tuned) -> None:
    env = {"LAMBERT_API_KEY": "secret-key"}
    with serving(f"classify={tuned('classify')}", precision="float32", env=env) as service:  # noqa: SIM117
        with opened(browser, service.url, expected=FAILED_LOAD) as page:
            page.get_by_role("heading", name="asks for an API key").wait_for()
            assert page.locator("#chosen").is_hidden()
            assert page.evaluate("document.activeElement.id") == "key"
            assert faults(page) == []
            page.keyboard.type("wrong")
            page.keyboard.press("Enter")
            page.get_by_text("The service refuses this key.").wait_for()
            page.keyboard.type("secret-key")
            page.keyboard.press("Enter")
            page.locator("#chosen").wait_for()
            assert page.locator("#key-form").is_hidden()
            assert page.locator("#model").is_disabled()
            run(page)
            assert page.locator(".bars li").count() == 2
            page.get_by_text("The same request with curl").click()
            assert "Bearer $LAMBERT_API_KEY" in page.locator("#curl").inner_text()
            assert "secret-key" not in page.content()
            assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 0]
            assert service.end()[0] == 0
            run(page)
            assert "The service does not answer" in page.locator("#output").inner_text()


def test_a_service_that_does_not_tell_its_models(browser: Any, service: Service) -> None:
    with opened(browser, "about:blank", expected=FAILED_LOAD) as page:
        mocked(page, "models", {"error": "The service is ending."}, 503)
        page.goto(service.url)
        page.get_by_text("The service is ending.").wait_for()
        assert faults(page) == []
        page.unroute("**/models")
        page.get_by_role("button", name="Try again").click()
        page.locator("#chosen").wait_for()
        assert page.locator("#failed").is_hidden()


HTML = "<img src=x onerror=document.title='hit'><script>document.title='hit'</script>"


def test_html_stays_text(browser: Any, tmp_path: Path, pretrained: Path, tuned: Tuned, lambert: Any) -> None:
    data = tmp_path / "labels.tsv"
    data.write_text("text\tlabel\n" + f"the king\t{HTML}\nthe boat\tother\n" * 8, encoding="utf-8")
    done = lambert(
        "finetune", data=data, init=pretrained, out=tmp_path / "html", train__epochs=1, train__batch_size=8,
        task__max_length=32, train__threads=1,
    )  # fmt: skip
    assert done.code == 0, done.err
    with serving(f"html={tmp_path / 'html'}", f"squad={tuned('squad')}", precision="float32") as service:
        with opened(browser, service.url) as page:
            run(page, Text=HTML)
            assert HTML in page.locator(".bars").inner_text()
            choose(page, "squad")
            run(page, Question=HTML, Context=f"{HTML} the king {HTML}")
            assert page.locator(".text").inner_text() == f"{HTML} the king {HTML}"
            choose(page, "squad", "Similarity")
            run(page, Text=HTML, Texts_to_compare_with=f"{HTML}\nother")
            assert HTML in page.locator(".bars").inner_text()
            assert page.locator("img, #panel script").count() == 0
            assert page.title() == "Lambert"
        service.end()


def test_no_script_but_its_own_can_run(browser: Any, service: Service) -> None:
    with opened(browser, service.url, expected="Content Security Policy|TrustedHTML") as page:
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('img'), {src: 'https://a.example/x'}))"
        )
        insert = "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')"
        assert "TrustedHTML" in page.evaluate(f"(() => {{ try {{ {insert} }} catch (e) {{ return String(e) }} }})()")
        fetched = page.evaluate("fetch('https://a.example/').then(() => 'sent', e => String(e))")
        assert fetched.startswith("TypeError")


@pytest.mark.parametrize("screen", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everyone_can_read_it(browser: Any, service: Service, scheme: str, screen: str) -> None:
    settings: dict[str, Any] = {"color_scheme": scheme, **(PHONE if screen == "phone" else {})}
    with opened(browser, service.url, **settings) as page:
        page.wait_for_selector("#model")
        for model in (*TASKS, "mask"):
            choose(page, model)
            if model in ("squad", "mask"):
                assert faults(page) == []
            page.locator("#run").click()
            page.wait_for_selector("#timing:not(:empty)")
            page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            assert faults(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), model
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") < "rgb(2"
        assert dark == (scheme == "dark")


def test_long_words_and_narrow_screens(browser: Any, service: Service) -> None:
    with opened(browser, service.url, viewport={"width": 320, "height": 568}) as page:
        page.wait_for_selector("#model")
        word = "a" * 400
        label = {"label": word, "probability": 1.0, "probabilities": {word: 1.0}}
        mocked(page, "predict", {"model": word, "version": word, "outputs": [label]})
        choose(page, "classify")
        run(page, Text=word)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        small = "e => { const b = e.getBoundingClientRect(); return b.height > 0 && Math.min(b.width, b.height) < 24; }"
        assert page.evaluate(f"[...document.querySelectorAll('button, input, select, a')].filter({small}).length") == 0
