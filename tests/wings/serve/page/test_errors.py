"""The page in a real browser: whatever the service answers, and texts that are HTML."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsers import FAILED_LOAD, choose, faults, mocked, opened, run
from tests.support.services import Service, serving

Tuned = Callable[[str], Path]


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
