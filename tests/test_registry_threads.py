"""One registry shared by the threads of a service."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diffmark.registry import Registry

pytest_plugins = ("postgres",)


@pytest.mark.parametrize("index", [False, True])
def test_threads_issue_and_identify_at_once(url: str, index: bool, tmp_path: Path) -> None:
    with Registry.open(url, index=index) as registry, ThreadPoolExecutor(4) as pool:

        def work(number: int) -> str | None:
            key = registry.issue(f"user-{number}")
            path = "index" if index else None
            return registry.identify_bits(int(key), top=1, path=path).verdict.principal

        assert list(pool.map(work, range(24))) == [f"user-{number}" for number in range(24)]
        assert registry.verify().ok
        assert registry.searcher.cache is not None  # type: ignore[union-attr]
        assert len(registry.searcher.cache.keys) == 24  # type: ignore[union-attr]
