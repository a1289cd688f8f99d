"""Names from outside stay in their fields of a model card."""

import tomllib
from pathlib import Path

import pytest
from cards import SHAPE, parts, structure, written

from lambert.model.heads import Model
from lambert.tasks.card import Origin, card_of_converted
from lambert.tasks.config import TaskConfig

HOSTILE = (
    "a\n---\nlicense: mine\n---",
    "---",
    "a: b # c",
    "x\nfoo: bar",
    "- x",
    "# x",
    "1. x",
    "yes",
    "1.5",
    "a\r\nb",
    "null",
    "<script>alert(1)<script>",
    "<!--",
    "&lt;b>",
    "a`b",
    "```",
    "````\n# x",
    "~~~",
    "[a](b)",
    "![a](b)",
    "[a]: b",
    "http:∕∕evil.example",
    "www.evil.example",
    "WWW.evil.example",
    "a@evil.example",
    "*a* _b_ __c__ ~~d~~",
    "a | b",
    "\\",
    '"; import os; "',
    "{{ 7 * 7 }}",
    "${x}",
    "\x1b[31mred",
    "\u202eleft",
    "\u2028line",
    "\x85line",
    "\U0001f600",
)


@pytest.mark.parametrize(
    ("kind", "name"),
    # a recipe has no path that is not UTF-8
    [*((kind, name) for kind in ("converted", "trained") for name in HOSTILE), ("converted", "\udcff")],
)
def test_a_name_from_outside_stays_in_its_field(kind: str, name: str) -> None:
    front, tokens = parts(written(name, kind))
    expected, plain = parts(written("name", kind))
    seen = "".join(character if character.isprintable() else " " for character in name)
    assert front == {**expected, "base_model": seen}
    assert structure(tokens) == structure(plain)
    title = tokens[1].children
    assert title is not None
    assert "".join(part.content for part in title).strip() == seen.strip()
    for token in tokens:
        if token.info == "python":
            compile(token.content, "card", "exec")
        if token.info == "toml":
            assert tomllib.loads(token.content)["task"]["labels"][0] == name


@pytest.mark.parametrize(
    ("readme", "known"),
    [
        ("license: mit\nfoo: bar", "mit"),
        ('license: "yes"', "yes"),
        ("license: 0bsd", "0bsd"),
        ("license: 1.0", "1.0"),
        ("license: __mine__", ""),
        ("license: a_b_", "a_b_"),
        ("license: mit\rfoo: bar", ""),
        ("license: <script>", ""),
        ("license: |\n  mit\n  foo: bar", ""),
        ("license: mit # foo", ""),
        ("license: mit: foo", ""),
    ],
)
def test_the_licence_of_the_origin_is_one_word_or_not_known(readme: str, known: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"---\n{readme}\n---\n", newline="")
    assert Origin.of(tmp_path).license == known
    front, tokens = parts(card_of_converted(Model(SHAPE, {}), tmp_path / "out", tmp_path, TaskConfig(name="embed")))
    assert front.get("license", "") == known
    assert set(front) <= {"library_name", "license", "base_model", "pipeline_tag", "tags"}
    assert f"whose licence is {known or 'not known'}." in "".join(part.content for part in tokens[4].children or ())
