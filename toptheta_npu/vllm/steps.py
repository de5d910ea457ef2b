"""One step of a serving engine, without the engine: which rows decode, and how the operator runs them.

An engine passes the new tokens of all sequences in one tensor [T, Hq, D], one sequence after the other. Its paged cache
already holds their keys and values. A sequence with one new token is a sparse row of a decode step, and so is each
token of a sequence with drafts to verify. The engine runs sequences with more new tokens (a prompt, a chunk of one)
itself, unless the settings threshold these rows, too. It also runs all rows of a step if none is long enough to be
sparse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from ..cpu.repeated import LayerDecode
from ..fallback.arguments import Arguments
from ..ops import incremental_attention_with_stats, prefill_attention
from .drafts import DraftRows, copy_indices_to_device, tokens_of
from .layers import DecodedRows, LayerRule
from .page_sums import NewRows

#: The attribute of an engine's metadata of a step that holds ours.
STEP = "toptheta_step"
#: The most batch sizes to cache values for.
_MAX_BATCHES = 64
#: No sequences, or tokens.
_NONE = torch.empty(0, dtype=torch.int64, device="cpu")


@dataclass(eq=False)
class Step:
    """Where the rows of one step lie.

    Attributes:
        new: the rows in the cache that it has written, with the lengths and pages of all sequences.
        query_start_loc: int32 [B+1], the first new token of every sequence, and their number. On the CPU.
        seq_lens: int32 [B], the keys of every sequence.
        block_table: int32 [B, blocks], the pages of every sequence.
        sequences: int64 [S], the sequences that decode; None: all of them, in order, with one new token each, so that
            nothing here has to be read by the host.
        tokens: int64 [R], their new tokens; None: token i is that of sequence i.
        several: int64 [P], on the CPU, the other sequences with new tokens; all of them where none is sparse.
        dense_tokens: int64, the tokens of these sequences.
        drafts: the sequences that decode, if some of them have several new tokens.
        dense: the engine's own metadata of these sequences, if it needs any.
        is_captured: lengths and pages are read when the step runs, so that a graph can replay it with others.

    Example:
        >>> step = Step.of(torch.tensor([0, 1, 4, 5]), torch.tensor([9, 3, 20]), torch.zeros(3, 2, dtype=torch.int32))
        >>> step.sequences.tolist(), step.tokens.tolist(), step.several.tolist(), step.dense_tokens.tolist()
        ([0, 2], [0, 4], [1], [1, 2, 3])
        >>> step.lengths.tolist(), step.counts.tolist()
        ([9, 20], [3])
    """

    new: NewRows
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    sequences: Tensor | None = None
    tokens: Tensor | None = None
    several: Tensor = _NONE
    dense_tokens: Tensor = _NONE
    drafts: DraftRows | None = None
    dense: Any = None
    is_captured: bool = False
    _rows: DecodedRows | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(
        cls, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, dense_below: int = 0,
        verify_tokens: int = 1, goes_on: np.ndarray | None = None, is_captured: bool = False,
    ) -> Step:  # fmt: skip
        """Make the step of these tokens.

        Args:
            query_start_loc: int32 or int64 [B+1], on the CPU. Sequences without new tokens are left out.
            seq_lens: int32 [B], the keys of every sequence, its new tokens included; on the device.
            block_table: int32 [B, blocks], the pages of every sequence; on the device.
            dense_below: if not 0, lengths are read on the host, and a step decodes nothing by thresholds unless some
                sequence that may has as many keys.
            verify_tokens: if more than 1, sequences that go on with up to as many new tokens decode, too.
            goes_on: bool [B], whether a sequence has keys before its new tokens; None: lengths are read on the host if
                it matters.
            is_captured: a graph replays the step.
        """
        starts = query_start_loc.numpy()
        if starts.tobytes() == _each_one(len(starts), starts.dtype) and (
            not dense_below or int(seq_lens.max()) >= dense_below
        ):
            return cls(NewRows(block_table, seq_lens), query_start_loc, seq_lens, block_table)
        counts = starts[1:] - starts[:-1]
        decode = counts == 1
        few = (counts > 1) & (counts <= verify_tokens)
        if few.any():
            decode |= few & (seq_lens.numpy() > counts if goes_on is None else goes_on)
        sparse = not dense_below or bool((seq_lens.numpy()[decode] >= dense_below).any())
        chosen = np.flatnonzero(decode & sparse)
        several = np.flatnonzero((counts > 0) & ~(decode & sparse))
        sequences, tokens, dense_tokens = copy_indices_to_device(
            seq_lens.device, chosen, starts[chosen], tokens_of(starts, several)
        )
        drafts = None
        if (counts[chosen] > 1).any():
            drafts = DraftRows.of(query_start_loc, chosen, seq_lens)
            new, tokens = drafts.read(seq_lens, block_table), drafts.tokens
        else:
            new = NewRows(block_table, seq_lens, query_start_loc, means=sparse)
        whole = query_start_loc, seq_lens, block_table
        others = torch.from_numpy(several), dense_tokens
        return cls(new, *whole, sequences, tokens, *others, drafts, is_captured=is_captured)

    @property
    def decode_only(self) -> bool:
        """Whether every sequence has one new token, and none is dense."""
        return self.sequences is None

    @property
    def lengths(self) -> Tensor:
        """The keys of the rows that decode, int32 [R]: one of each sequence without drafts."""
        return self.new.decoding_lengths

    @property
    def decodes(self) -> bool:
        """Whether any sequence decodes."""
        return self.new.num_decoding > 0

    @property
    def counts(self) -> np.ndarray:
        """The new tokens of each sequence in ``several``, int [P]."""
        starts, several = self.query_start_loc.numpy(), self.several.numpy()
        counts: np.ndarray = starts[several + 1] - starts[several]
        return counts

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield of every sequence in ``several`` its index, its first token and the token after its last."""
        starts = self.query_start_loc.tolist()
        for index in self.several.tolist():
            yield index, starts[index], starts[index + 1]

    def rows_of(self, rule: LayerRule) -> DecodedRows:
        """Get the rows that all layers of a group share; its first layer looks them up.

        A graph captured with a step therefore includes the look-up.
        """
        if rule.layer == rule.group.first or self._rows is None:
            if self.is_captured and self.drafts is not None:
                self.new = self.drafts.read(self.seq_lens, self.block_table)
            self._rows = rule.group.look_up(self.lengths)
        return self._rows


@lru_cache(maxsize=_MAX_BATCHES)
def _each_one(count: int, dtype: np.dtype) -> bytes:
    """Get the first tokens of sequences with one token each, and their number, in one piece: ``count`` numbers."""
    return np.arange(count, dtype=dtype).tobytes()


def attend(step: Step, query: Tensor, key_cache: Tensor, value_cache: Tensor, rule: LayerRule, out: Tensor) -> None:
    """Write the rows of a step that follow the thresholds into ``out``. The others keep what they hold.

    These are the rows of sequences that decode, and all with ``rule.prefill`` "thresholded". A step in which each has
    one reads nothing on the host, so that a graph can capture it. With ``rule.vmc``, every step has to come here: the V
    sums of all rows that it has written are made.

    Args:
        step: where the rows lie.
        query: [T, Hq, D].
        key_cache, value_cache: the pages, [blocks, Hkv, block_size, D] with any strides, the new
            tokens' rows included; int8 where the rule has scales.
        rule: of the layer.
        out: [T, Hq, D].
    """
    # The kernel of the layer before has filled the processor's caches, so each function that runs here, up to the next
    # call of the kernel, has to come from memory: plain steps go through as few as possible.
    if not step.new.num_decoding:
        _means(step, value_cache, rule)
    else:
        looked_up, group = step.rows_of(rule), rule.group
        call = None if is_compiling() or step.drafts is not None else group.repeated.get(rule)
        rows = None if call is None else looked_up.repeated or looked_up.repeat(call, step.new)
        if (
            call is None
            or rows is None
            or step.tokens is not None
            or not call(query, key_cache, value_cache, rows, out)
        ):
            decode = _decode_apart if step.drafts is None else _verify
            decode(step, looked_up, query, key_cache, value_cache, rule, out)
        if rule.layer == group.last and group.counters is not None:
            group.counters.add(looked_up.lengths, *looked_up.counts())
    if rule.prefill == "thresholded":
        for index, start, end in step.ranges():
            out[start:end] = _prompt(step, index, query[start:end], key_cache, value_cache, rule)


def _means(step: Step, value_cache: Tensor, rule: LayerRule) -> Tensor | None:
    """Make the V sums of a step and the means of its rows [R, Hkv, D], where there is V-mean compensation."""
    if not rule.vmc:
        return None
    assert rule.page_sums is not None
    return rule.page_sums.means(value_cache, step.new)


def _decode_apart(
    step: Step, looked_up: DecodedRows, query: Tensor, key_cache: Tensor, value_cache: Tensor, rule: LayerRule,
    out: Tensor,
) -> None:  # fmt: skip
    """Decode rows that are not all of the query, or go to another place than ``out``, or by the operator."""
    if step.tokens is not None:
        query = query[step.tokens]
    elif len(query) > step.new.num_decoding:  # padding
        query, out = query[: step.new.num_decoding], out[: step.new.num_decoding]
    call, rows = rule.group.repeated.get(rule), looked_up.repeated
    to = None
    if call is not None and rows is not None and not is_compiling():
        direct = step.tokens is None and out.dtype is query.dtype and out.is_contiguous()
        to = out if direct else torch.empty_like(query, memory_format=torch.contiguous_format)
        if not call(query, key_cache, value_cache, rows, to):
            to = None  # where values are wrong, the operator says what it is
    if to is None:
        to, kept, value_rows = _by_operator(step, query, key_cache, value_cache, rule, looked_up)
        if rule.group.counters is not None:
            looked_up.count(rule.layer, kept, value_rows)
    if step.tokens is not None:
        out[step.tokens] = to
    elif to is not out:
        out.copy_(to)


def _verify(
    step: Step, looked_up: DecodedRows, query: Tensor, key_cache: Tensor, value_cache: Tensor, rule: LayerRule,
    out: Tensor,
) -> None:  # fmt: skip
    """Run all rows that decode, where some sequences have several: each sequence is read once for all its tokens."""
    drafts, layer = step.drafts, rule.layer
    assert drafts is not None
    mean, mass = _means(step, value_cache, rule), looked_up.discarded_mass
    result, _, kept, value_rows = incremental_attention_with_stats(
        drafts.padded(query.index_select(0, drafts.tokens)).transpose(1, 2), key_cache, value_cache,
        drafts.padded(looked_up.theta[layer]).transpose(1, 2).contiguous(), actual_seq_lengths=drafts.lengths,
        actual_query_lengths=drafts.counts, block_table=drafts.block_table,
        block_size=key_cache.shape[2], num_key_value_heads=rule.num_key_value_heads,
        scale_value=rule.scale, placement=rule.group.thresholds.placement, sdc=rule.sdc, sdc_gamma=rule.sdc_gamma,
        discarded_mass=None if mass is None else drafts.padded(mass[layer]).transpose(1, 2).contiguous(),
        value_mean=None if mean is None else drafts.padded(mean).transpose(1, 2).contiguous(),
        **_antiquant(rule),
    )  # fmt: skip
    out[drafts.tokens] = drafts.taken(result.transpose(1, 2)).to(out.dtype)
    if rule.group.counters is not None:
        # the V rows of a sequence are read once, and count with its first token
        looked_up.count(layer, drafts.taken(kept.transpose(1, 2)), drafts.at_first(value_rows))


def _by_operator(
    step: Step, query: Tensor, key_cache: Tensor, value_cache: Tensor, rule: LayerRule, looked_up: DecodedRows
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the operator, and keep its call if later steps can repeat it: [S, Hq, D], kept [S, Hq], V rows [S, Hkv]."""
    group, pages, layer = rule.group, step.new.decoding_table, rule.layer
    mean = _means(step, value_cache, rule)
    mass = None if looked_up.discarded_mass is None else looked_up.discarded_mass[layer]
    rows = key_cache.shape[2]
    call = Arguments(
        query.shape[1], rule.num_key_value_heads, rule.scale, query.unsqueeze(2), key_cache, value_cache,
        looked_up.theta[layer], step.lengths, None, pages, discarded_mass=mass, value_mean=mean,
        placement=group.thresholds.placement, sdc=rule.sdc, sdc_gamma=rule.sdc_gamma, block_size=rows
    )  # fmt: skip
    result, _, kept, value_rows = incremental_attention_with_stats(
        call.query, key_cache, value_cache, call.threshold, actual_seq_lengths=call.actual_seq_lengths,
        block_table=pages, block_size=rows, num_key_value_heads=rule.num_key_value_heads, scale_value=rule.scale,
        placement=call.placement, sdc=rule.sdc, sdc_gamma=rule.sdc_gamma, discarded_mass=mass, value_mean=mean,
        **_antiquant(rule),
    )  # fmt: skip
    if rule.antiquant is None and LayerDecode.is_possible(call):
        sums = None if rule.page_sums is None else rule.page_sums.native_form(value_cache)
        masses = None if group.discarded_mass is None else group.discarded_mass[layer]
        group.repeated[rule] = LayerDecode(call, group.theta[layer], masses, group.numbers[layer], sums)
    return result.squeeze(2), kept, value_rows


def _prompt(step: Step, index: int, query: Tensor, key_cache: Tensor, value_cache: Tensor, rule: LayerRule) -> Tensor:
    """Compute the rows [Q, Hq, D] of one sequence with several new tokens, each by the rule of its own decode step."""
    length = int(step.seq_lens[index])
    counts = torch.arange(length - len(query) + 1, length + 1, device=query.device)
    key, value = (_gathered(cache, step.block_table[index], length) for cache in (key_cache, value_cache))
    options = rule.options(counts) | _antiquant(rule)
    theta = options.pop("threshold").T
    if options["discarded_mass"] is not None:
        options["discarded_mass"] = options["discarded_mass"].T[None]
    out = prefill_attention(
        query.transpose(0, 1)[None], key, value, theta, scale_value=rule.scale, vmc=rule.vmc, **options
    )
    return out[0].transpose(0, 1)


def _antiquant(rule: LayerRule) -> dict[str, Any]:
    """Name the operator's arguments for the scales of an int8 cache."""
    return {} if rule.antiquant is None else rule.antiquant._asdict()


def _gathered(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """Gather the rows of one sequence in a row: [1, Hkv, length, D]."""
    _, heads, rows, head_dim = cache.shape
    taken = cache[table[: -(-length // rows)].long()].transpose(0, 1)
    return taken.reshape(heads, -1, head_dim)[None, :, :length]
