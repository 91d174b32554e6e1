from __future__ import annotations

import pytest
import torch

from diffmark.training.draws import Draws
from diffmark.training.replay import Replay


def batch(first, count=2):
    rows = torch.arange(first, first + count)
    return rows.float().view(-1, 1, 1, 1), rows.view(-1, 1), -rows.float().view(-1, 1, 1, 1)


def held(replay):
    return sorted(int(value) for value in replay.state_dict()["stored"][1].flatten())


def test_the_oldest_rows_go_first():
    replay = Replay(5)
    for first in (0, 2, 4, 6):
        replay.push(batch(first))
    assert held(replay) == [3, 4, 5, 6, 7]
    replay.push(batch(8))
    assert held(replay) == [5, 6, 7, 8, 9]


def test_rows_stay_together():
    replay = Replay(4)
    replay.push(batch(0, 4))
    marked, secrets, clean = replay.draw(Draws(0, 0), 16)
    assert torch.equal(marked.flatten(), secrets.flatten().float())
    assert torch.equal(marked, -clean)


def test_state_is_all_there_is():
    first, second = Replay(3), Replay(3)
    first.push(batch(0))
    first.push(batch(2))
    second.load_state_dict(first.state_dict())
    for replay in (first, second):
        replay.push(batch(4))
    assert held(first) == held(second)


def test_a_batch_must_fit():
    with pytest.raises(ValueError, match="a batch of 4 does not fit a replay buffer of 3"):
        Replay(3).push(batch(0, 4))
