"""Two and three processes that hold sequences together get what one process gets that holds them alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import Tensor

from tests.context_parallel.one_rank import RANKS
from tests.context_parallel.scenes import SCENES, inputs_of, positions
from tests.helpers import assert_within_yardstick, from_layout, of_rows, yardstick
from tests.ranks import run_ranks
from toptheta_npu.context_parallel import exchanged_bytes

SECONDS = 300
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> list[dict[int, Any]]:
    """What each of three processes got, by the size of the group; the workers of a run share them."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared if worker_id == "master" else shared.parent
    folder = shared / "ranks"
    with FileLock(shared / "ranks.lock"):
        if not folder.exists():
            folder.mkdir()
            run_ranks("tests.context_parallel.one_rank", folder, [0] * RANKS, SECONDS)
    return [torch.load(folder / str(rank)) for rank in range(RANKS)]


@pytest.fixture(params=[2, RANKS], ids=["2 ranks", "3 ranks"])
def played(request: pytest.FixtureRequest, processes: list[dict[int, Any]]) -> Results:
    """What each rank of a group got."""
    return [results[request.param] for results in processes if request.param in results]


def same(tensors: list[Tensor]) -> Tensor:
    """The one tensor that all ranks have, bit for bit."""
    assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
    return tensors[0]


@pytest.mark.parametrize("name", SCENES)
def test_a_step_is_that_of_one_process(played: Results, name: str) -> None:
    """The same elements are kept, exactly, and numbers agree with the oracle as closely as those of one process."""
    scene = SCENES[name]
    inputs = inputs_of(scene)
    case, expected = inputs.case, inputs.expected
    out, lse, kept = (same([rank["steps"][name]["result"][field] for rank in played]) for field in range(3))
    assert torch.equal(of_rows(case, kept).long(), expected.kept)
    assert (out.dtype, lse.dtype, kept.dtype) == (case.torch_dtype, torch.float32, torch.int32)
    assert out.shape == inputs.arguments["query"].shape
    assert out.is_contiguous()
    assert_within_yardstick(from_layout(out, case.layout, case.heads), yardstick(inputs)[0], expected.out)
    assert_within_yardstick(of_rows(case, lse), yardstick(inputs, torch.float32)[1], expected.lse)


def test_steps_have_rows_that_keep_nothing_anywhere_or_in_some_ranks_and_ranks_without_keys(played: Results) -> None:
    inputs = [inputs_of(scene) for scene in SCENES.values()]
    assert any((case.expected.kept == 1).any() for case in inputs)
    shares = [
        [len(positions(scene.spread, inputs.rows.key.shape[2], rank, len(played))) for rank in range(len(played))]
        for scene, inputs in zip(SCENES.values(), inputs, strict=True)
    ]
    assert any(0 in share for share in shares)
    assert any(max(share) > 5 * min(share) > 0 for share in shares)


@pytest.mark.parametrize("name", SCENES)
def test_a_step_sends_one_buffer_of_the_stated_size(played: Results, name: str) -> None:
    case = SCENES[name].case
    sizes = {"batch": len(case.lengths), "num_heads": case.heads, "num_key_value_heads": case.kv_heads,
             "query_tokens": case.query_tokens}  # fmt: skip
    bytes_ = exchanged_bytes(**sizes, head_dim=case.head_dim, placement=case.placement, vmc=case.vmc)
    for rank in played:
        sent = rank["steps"][name]["sent"]
        assert len(sent) == (2 if case.placement == "post_softmax" else 1)
        assert sum(sent) == bytes_


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other batch", "rank 1: expected batch=2, as in rank 0, got batch=1; call with the same arguments in all"),
        ("other dtype", "rank 1: expected dtype=torch.float32, as in rank 0, got dtype=torch.float16"),
        ("other sdc", "rank 1: expected sdc=exact, as in rank 0, got sdc=none"),
        ("other gamma", "rank 1: expected sdc_gamma=0.05, as in rank 0, got sdc_gamma=0.1"),
        ("VMC in one", "rank 1: expected vmc=True, as in rank 0, got vmc=False"),
        ("no thresholds", "TopThetaTypeError: threshold: expected a torch.Tensor, got NoneType"),
        ("good", "no error"),
    ],
)
def test_all_ranks_raise_where_their_arguments_differ_and_go_on_afterwards(
    played: Results, name: str, message: str
) -> None:
    for rank in played:
        assert message in rank["errors"][name]


def test_ranks_do_not_wait_for_one_that_is_gone(processes: list[dict[int, Any]]) -> None:
    *others, last = [results[RANKS]["gone"] for results in processes]
    assert last == "gone"
    for message in others:
        assert message.startswith("TopThetaValueError: group: expected every rank in this call, over a backend for")
        assert "got one that is gone, late or in another call" in message
