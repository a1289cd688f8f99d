"""A browser, a service of a model for each task, and its page."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsers import TASKS, chromium, opened
from tests.support.services import Service, serving

Tuned = Callable[[str], Path]


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
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
