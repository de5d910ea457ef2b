"""The shim for vllm-ascend before the parts that it relies on: decode, mixed and padded steps, V means, refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.serving import ascend_parts
from tests.serving.ascend_engine import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    Config,
    OurBuilder,
    Served,
    make_impl,
    mode,
    ngrams,
    save_table,
)
from tests.serving.ascend_parts import AscendAttentionBackendImpl, FullAttentionSpec
from toptheta_npu import TopThetaBackendError, TopThetaNotImplementedError, TopThetaValueError
from toptheta_npu.vllm import ascend
from toptheta_npu.vllm.ascend_metadata import of_sequences

PROMPTS = [40, 21, 1, 90]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return save_table(tmp_path)


def assert_right(results: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for out, expected in results:
        torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


def dense_tokens(served: Served) -> list[list[int]]:
    """The tokens of every call that vllm-ascend's own attention has got, by layer."""
    return [layer.impl.dense_tokens for layer in served.layers.values()]


def test_decode_steps_follow_the_thresholds(table: Path) -> None:
    served = Served(table)
    assert_right(served.step(PROMPTS[:2]))
    for _ in range(20):  # over the end of a page
        assert_right(served.step([1, 1]))
    assert dense_tokens(served) == [[61], [61]]


def test_decode_differs_from_dense_attention(table: Path) -> None:
    """Else the tests here would prove nothing."""
    served, dense = Served(table), Served(table, dense_layers=[0])
    for engine in (served, dense):
        engine.step([100])
    ((sparse, _), _), ((whole, expected), _) = served.step([1]), dense.step([1])
    torch.testing.assert_close(whole, expected, atol=2e-6, rtol=1e-5)
    assert (sparse - whole).abs().max() > 0.05


def test_mixed_steps_are_split(table: Path) -> None:
    served = Served(table)
    assert_right(served.step([40, 9]))
    assert_right(served.step([1, 7, 30]))
    assert_right(served.step([3, 1, 1, 20]))
    assert dense_tokens(served) == [[49, 37, 23]] * 2


def test_metadata_of_dense_sequences_name_the_places_of_their_rows_alone(table: Path) -> None:
    served = Served(table)
    served.step([40, 9, 1])
    metadata = served.prepare([7, 1, 30], padded_tokens=2)
    step, slots = metadata.toptheta_step, metadata.slot_mapping.tolist()
    cut = of_sequences(metadata, step, step.several, step.dense_tokens)
    assert cut.slot_mapping.tolist() == slots[:7] + slots[8:]
    assert cut.num_actual_tokens == cut.actual_seq_lengths_q[-1] == 37


def test_thresholded_prompts_do_not_reach_the_dense_attention(table: Path) -> None:
    served = Served(table, prefill="thresholded")
    results = served.step([40, 9])
    assert all(out.isfinite().all() for out, _ in results)
    assert_right(served.step([1, 1]))
    assert dense_tokens(served) == [[], []]


def test_padding_is_no_sequence(table: Path) -> None:
    served = Served(table)
    served.step([40, 21])
    step = served.prepare([1, 1], padded_tokens=3).toptheta_step
    assert step.decode_only
    assert step.seq_lens.tolist() == [41, 22]


@pytest.mark.parametrize("counts", [[1, 1], [1, 6], [5, 6]])
def test_padding_rows_are_zero(table: Path, counts: list[int]) -> None:
    served = Served(table)
    served.step([40, 21])
    results = served.step(counts, padded_tokens=3)
    if 1 in counts:  # else the engine's own attention has the whole step, padding included
        assert_right(results)
        assert all((out[-3:] == 0).all() for out, _ in results)


def test_layers_that_stay_dense_run_in_the_dense_attention(table: Path) -> None:
    served = Served(table, dense_layers=[1])
    assert_right(served.step([40]))
    assert_right(served.step([1]))
    assert dense_tokens(served) == [[40], [40, 1]]
    window = Served(table, windows=[0])
    assert_right(window.step([40]))
    assert_right(window.step([1]))
    assert dense_tokens(window) == [[40, 1], [40]]


@pytest.mark.parametrize(("name", "side_by_side"), [("NHD", False), ("LBNHC", True), ("HND", True), ("LBHNC", False)])
def test_every_layout_is_read_as_it_lies(
    table: Path, name: str, side_by_side: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", name)
    served = Served(table, side_by_side=side_by_side, prefill="thresholded")
    served.step([40, 21])
    for counts in ([1, 1], [1, 1, 1]):
        assert_right(served.step(counts))


def test_the_engine_says_whether_heads_come_first(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a page has as many rows as heads, shapes are the same."""
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    served = Served(table, block_size=KV_HEADS)
    served.step([9])
    assert_right(served.step([1]))


def test_a_layout_without_a_known_name_is_refused_when_the_layer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "LHBNC")
    with pytest.raises(
        TopThetaNotImplementedError,
        match=r"^VLLM_KV_CACHE_LAYOUT: expected one of NHD, LBNHC, HND, LBHNC, got LHBNC; set VLLM_KV_CACHE_LAYOUT=NHD",
    ):
        make_impl()


def test_a_cache_that_is_not_read_is_refused_before_a_layer_runs(table: Path) -> None:
    """When the first step is prepared: vllm-ascend's warm-up does."""
    served = Served(table)
    layer = list(served.layers.values())[-1]
    layer.kv_cache = tuple(torch.zeros(64, KV_HEADS, 1, 16, 32) for _ in range(2))
    with pytest.raises(TopThetaNotImplementedError, match=r"^kv_cache: .* got \[64, 2, 1, 16, 32\] of torch.float32"):
        served.prepare([1])


def test_another_cache_gets_sums_of_its_own(table: Path) -> None:
    """An engine may try its graphs on a small cache, and then make the real one."""
    served = Served(table)
    layer = next(iter(served.layers.values()))
    served.prepare([1])
    first = layer.impl.rule.page_sums
    layer.kv_cache = tuple(torch.zeros(128, *each.shape[1:]) for each in layer.kv_cache)
    served.prepare([1])
    assert layer.impl.rule.page_sums._sums.nbytes > 1.9 * first._sums.nbytes


@pytest.mark.parametrize("seen", [True, False])
def test_means_are_those_of_the_sequences(table: Path, seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not seen:  # as on a device
        monkeypatch.setattr("toptheta_npu.vllm.page_sums.host_can_read", lambda tensor: False)
    served = Served(table, vmc=True)
    assert_right(served.step([40, 21]))
    for counts in ([1, 1], [1, 30], [1, 1, 50], *[[1, 1, 1]] * 18):
        assert_right(served.step(counts))
    sums = [layer.impl.rule.page_sums for layer in served.layers.values()]
    assert sums[0] is not sums[1]


def test_prompts_that_share_pages_with_a_prompt_of_their_step_have_their_sums(table: Path) -> None:
    """In either order of the batch, as vLLM's prefix cache may hand them out."""
    served = Served(table, vmc=True)
    served.step([40, 40])
    twin, first = served.pages[1], served.pages[0]
    for index in range(2):  # the same rows up to the end of the second page, and the second one goes on from there
        served.rows[1][index] = tuple(rows[:32] for rows in served.rows[0][index])  # type: ignore[assignment]
    served.pages[1] = first[:2] + twin[2:]
    assert_right(served.step([1, 20]))
    assert_right(served.step([1, 1]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("vmc", [False, True])
@torch._dynamo.config.patch(error_on_recompile=True)
def test_a_traced_decode_step_serves_other_sequences(table: Path, vmc: bool) -> None:
    """As a captured one: lengths, tables and slots lie in buffers, and no value of theirs is looked at."""
    torch._dynamo.reset()
    served = Served(table, vmc=vmc)
    served.step([40, 15])
    served.step([1, 1])
    layer = next(iter(served.layers.values()))
    assert layer.impl.rule.group.repeated  # a call that a traced step must not repeat
    query, out = torch.zeros(4, HEADS, HEAD_DIM), torch.zeros(4, HEADS, HEAD_DIM)
    common = ascend_parts.common_metadata([1] * 4, served.lengths, served.table, served.slots[:4])
    metadata = served.builder.build(0, common)

    @torch.compile(backend="eager", fullgraph=True, dynamic=False)
    def attend() -> None:
        layer.impl.forward_impl(query, None, None, layer.kv_cache, metadata, out)

    for counts in ([1, 1], [1, 1, 1], *[[1, 1, 1, 1]] * 18):
        served.prepare(counts)
        new = [served.draw(len(counts), heads) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        query[: len(counts)] = new[0]
        served.note(counts, 0, *new[1:])
        layer.impl.reshape_and_cache(*new[1:], layer.kv_cache, served.slots[:4])
        attend()
        torch.testing.assert_close(out[: len(counts)], served.expected(0, counts, new[0]), atol=2e-6, rtol=1e-5)
        assert (out[len(counts) :] == 0).all()


def test_counts_are_kept(table: Path) -> None:
    served = Served(table, metrics=True)
    for counts in ([40, 9], [1, 7], [1, 1]):
        served.step(counts, padded_tokens=2)
    totals = served.builder._engine.metrics.totals()
    assert (totals.decode_tokens, totals.prompt_tokens, totals.rows) == (3, 56, 6)


def test_importing_the_shim_imports_no_engine() -> None:
    code = (
        "import sys, toptheta_npu.vllm.ascend; "
        "assert not {'vllm', 'vllm_ascend', 'torch_npu', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    ascend._replace_classes.cache_clear()
    yield ascend_parts.put_in_place(monkeypatch)
    ascend._replace_classes.cache_clear()


def choose(parts: ascend_parts.Platform) -> tuple[type, type]:
    """The classes that a layer and its builder get, asked for as vLLM does."""
    assert parts.platform.get_attn_backend_cls(None, SimpleNamespace()) == parts.path
    return parts.backend.get_impl_cls(), parts.backend.get_builder_cls()


def test_engines_with_settings_get_our_classes_and_others_do_not(parts: ascend_parts.Platform, table: Path) -> None:
    ascend.install()
    ascend.install()
    assert choose(parts) == (parts.impl, parts.builder)
    parts.config = Config({"table": str(table)})
    for _ in range(2):
        impl, builder = choose(parts)
        assert issubclass(impl, ascend.Impl)
        assert issubclass(impl, AscendAttentionBackendImpl)
        assert issubclass(builder, ascend.Builder)
    assert make_impl(impl).rule is None

    parts.config = Config({})
    impl, builder = choose(parts)
    assert impl is parts.impl
    plain = builder(FullAttentionSpec(), [], parts.config, torch.device("cpu"))
    lengths = torch.tensor([1], dtype=torch.int32)
    metadata = plain.build(0, ascend_parts.common_metadata([1], lengths, torch.zeros(1, 1).int(), lengths))
    assert not hasattr(metadata, "toptheta_step")


REFUSED = {
    "latent attention": ({"path": "vllm_ascend.attention.mla_v1.AscendMLABackend"}, "attention: .*AscendMLABackend"),
    "the 310P": ({"path": "vllm_ascend._310p.attention.attention_v1.AscendAttentionBackend310"}, "attention: .*310P"),
    "context parallelism": (
        {"impl": type("AscendAttentionDCPImpl", (), {})},
        "got AscendAttentionDCPImpl; set",
    ),
    "an unknown version": (
        {"version": "0.26.0"},
        "vllm-ascend: expected version 0.23.0 or .*, got 0.26.0; ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_platform_chose_is_refused(case: str, parts: ascend_parts.Platform, table: Path) -> None:
    changes, message = REFUSED[case]
    ascend.install()
    for name, value in changes.items():
        setattr(parts, name, value)
    assert choose(parts)[0] is parts.impl  # an engine without settings goes on
    parts.config = Config({"table": str(table)})
    with pytest.raises(TopThetaNotImplementedError, match=message):
        choose(parts)


def test_an_engine_with_a_connector_is_refused_before_its_layers_are_made(
    parts: ascend_parts.Platform, table: Path
) -> None:
    ascend.install()
    parts.config = Config({"table": str(table)}, kv_transfer_config="LMCache")
    with pytest.raises(TopThetaNotImplementedError, match=r"^kv_transfer_config: .* got LMCache"):
        choose(parts)


def test_an_unknown_version_runs_if_the_user_says_so(parts: ascend_parts.Platform, table: Path) -> None:
    ascend.install()
    parts.version = "0.26.0.dev1+g123"
    parts.config = Config({"table": str(table), "untried_versions": True})
    assert issubclass(choose(parts)[0], ascend.Impl)


def test_other_parameters_are_refused_in_any_version(
    parts: ascend_parts.Platform, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward_impl(self: Any, query: Any, key: Any, value: Any, kv_cache: Any, metadata: Any) -> None: ...

    monkeypatch.setattr(AscendAttentionBackendImpl, "forward_impl", forward_impl)
    ascend.install()
    parts.config = Config({"table": str(table), "untried_versions": True})
    with pytest.raises(
        TopThetaBackendError, match=r"expected AscendAttentionBackendImpl.forward_impl\(self, .*, output\), got"
    ):
        choose(parts)


UNCOVERED = {
    "alibi_slopes": {"alibi_slopes": [0.5] * 4},
    "logits_soft_cap": {"logits_soft_cap": 30.0},
    "sinks": {"sinks": torch.zeros(4)},
    "kv_sharing_target_layer_name": {"kv_sharing_target_layer_name": "model.layers.0"},
    "kv_cache_dtype": {"kv_cache_dtype": "fp8"},
    "attn_type": {"attn_type": "encoder_only"},
    "enable_hamming_sparse": {"enable_hamming_sparse": True},
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_attention_that_is_not_covered_is_refused_by_name(name: str) -> None:
    with pytest.raises(TopThetaNotImplementedError, match=f"^{name}: expected "):
        make_impl(**UNCOVERED[name])


def test_a_quantised_cache_that_changed_the_class_is_refused(table: Path) -> None:
    config = Config({"table": str(table), "check_weights": False})
    layer = SimpleNamespace(impl=make_impl())
    layer.impl.__class__ = type("AscendOtherQuantImpl", (AscendAttentionBackendImpl,), {})
    config.compilation_config.static_forward_context["model.layers.0.attn"] = layer
    with pytest.raises(
        TopThetaBackendError, match=r"implementation in model.layers.0.attn, got AscendOther.*quantised"
    ):
        OurBuilder(FullAttentionSpec(), ["model.layers.0.attn"], config, torch.device("cpu"))


def test_a_table_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopThetaValueError, match="expected thresholds of 2 layers x 4 heads"):
        Served(save_table(tmp_path, layers=3))


@pytest.mark.parametrize(
    ("graphs", "settings", "drafts", "refused"),
    [
        ("NONE", {}, False, False), ("PIECEWISE", {"dense_layers": [0]}, True, False),
        ("FULL_DECODE_ONLY", {}, False, False), ("FULL_AND_PIECEWISE", {}, False, False),
        ("FULL", {}, False, True), ("FULL_DECODE_ONLY", {"dense_layers": [1]}, False, True),
        ("FULL_AND_PIECEWISE", {}, True, False), ("FULL", {}, True, True),
        ("FULL_DECODE_ONLY", {"dense_layers": [1]}, True, True),
    ],
)  # fmt: skip
def test_graphs_that_would_replay_other_rows_are_refused(
    table: Path, graphs: str, settings: dict[str, Any], drafts: bool, refused: bool
) -> None:
    speculative = ngrams(2) if drafts else None
    compilation = SimpleNamespace(static_forward_context={}, cudagraph_mode=mode(graphs))
    config = {"compilation_config": compilation, "speculative_config": speculative}
    if not refused:
        Served(table, config=config, **settings)
        return
    with pytest.raises(TopThetaNotImplementedError, match=f"^cudagraph_mode: .* got {graphs}; set cudagraph_mode='PI"):
        Served(table, config=config, **settings)


def test_a_step_that_nobody_prepared_is_an_error(table: Path) -> None:
    served = Served(table)
    metadata = served.prepare([1])
    del metadata.toptheta_step
    layer = next(iter(served.layers.values()))
    with pytest.raises(TopThetaBackendError, match="a layer and a step prepared by Builder, got AscendMetadata"):
        layer.impl.forward_impl(served.draw(1, 4), None, None, None, metadata, served.draw(1, 4))


def test_lengths_on_the_host_are_refused(table: Path) -> None:
    """A graph would go on with those of its capture."""
    common = ascend_parts.common_metadata([1], torch.tensor([1]), torch.zeros(1, 1, device="meta"), torch.tensor([0]))
    with pytest.raises(TopThetaBackendError, match="expected seq_lens on meta, got cpu"):
        ascend._step(common, None, 1, False)
