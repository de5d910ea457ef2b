"""`sparsify(...)` without a `with` does nothing, and says so; entered in any way it says nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch

from tests.models.test_contexts import sparse_step
from tests.models.tiny import K, model_of, new_model, table_of
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.methods.top_k import select_top_k
from toptheta_npu.models import NotEnteredWarning, apply_selection, sparsify

pytestmark = pytest.mark.usefixtures("no_grad")


def _forgotten() -> None:
    sparsify(model_of(), table_of(), k=K)
    gc.collect()


def _kept() -> None:
    context = sparsify(model_of(), table_of(), k=K)
    sparse_step(model_of())
    del context
    gc.collect()


def _selection() -> None:
    apply_selection(model_of(), lambda layer: select_top_k(4))
    gc.collect()


@pytest.mark.parametrize("forget", [_forgotten, _kept, _selection])
def test_a_call_that_nobody_enters_is_told_with_its_line(forget: Callable[[], None]) -> None:
    name = "apply_selection" if forget is _selection else "sparsify"
    words = rf"^{name}\(\.\.\.\) did nothing: it was called, but not entered, .*Write `with {name}\(\.\.\.\):`"
    with pytest.warns(NotEnteredWarning, match=words) as caught:
        forget()
    line = forget.__code__.co_firstlineno + 1
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line)]


def test_a_script_that_keeps_it_is_told_at_its_end() -> None:
    script = (
        "from toptheta_npu.assets import load_tiny_llama\nfrom toptheta_npu.models import sparsify\n"
        "context = sparsify(load_tiny_llama()[0], tau=0.01)\nprint('end')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "end\n"
    assert "NotEnteredWarning: sparsify(...) did nothing" in done.stderr


def test_what_is_entered_in_any_way_is_not_told() -> None:
    model, table = model_of(), table_of()
    dense = sparse_step(model)
    with sparsify(model, table, k=K):
        expected = sparse_step(model)
    assert not torch.equal(expected, dense)

    @sparsify(model, table, k=K)
    def decorated() -> torch.Tensor:
        return sparse_step(model)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ExitStack() as stack:
            run = stack.enter_context(sparsify(model, table, k=K))
            assert torch.equal(sparse_step(model), expected)
        assert run.k == K
        assert all(torch.equal(decorated(), expected) for _ in range(2))
        context = sparsify(model, table, k=K)
        assert torch.equal(sparse_step(model), dense)
        with context:
            assert torch.equal(sparse_step(model), expected)
        with pytest.raises(TopThetaValueError), sparsify(new_model(seed=1), table, k=K):
            pass
        del context, decorated
        gc.collect()
    assert torch.equal(sparse_step(model), dense)
