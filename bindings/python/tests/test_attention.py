"""fovea.attention() against float64, option by option, on every level."""

import ml_dtypes
import numpy as np
import pytest

import fovea
from oracle import assert_within_bound, attention, blocks_of_q8_0, values_of_q4_0

BF16 = ml_dtypes.bfloat16


def check(q, k, v, level, **options):
    kwargs = dict(options)
    if options.get("align") is None and (options.get("causal") or "window" in options or "alibi_slopes" in options):
        kwargs["align"] = options["align"] = "bottom-right"
    got = fovea.attention(q, k, v, return_lse=True, return_weights=True, context=level, **kwargs)
    assert_within_bound(got, attention(q, k, v, **options), v, str(q.dtype))
    return got


@pytest.mark.parametrize("options", [
    {}, {"scale": 0.0}, {"scale": -0.3}, {"softcap": 2.0}, {"causal": True}, {"causal": True, "align": "top-left"},
    {"window": (3, 1)}, {"window": (None, 2)}, {"window": (2, -1)}, {"causal": True, "window": (4, 7)},
], ids=str)
def test_options_that_are_numbers(qkv, level, options):
    check(*qkv, level, **options)


def test_slopes_and_sinks(qkv, level):
    slopes = fovea.alibi_slopes(8)
    check(*qkv, level, alibi_slopes=slopes)
    check(*qkv, level, sinks=np.array([0, 1, -np.inf, 2, -3, 0.5, 0, 9], np.float32))
    check(*qkv, level, causal=True, softcap=1.5, alibi_slopes=slopes, sinks=np.zeros(8, np.float32))


def test_slopes_and_sinks_of_other_types_are_the_same_numbers(qkv):
    slopes = fovea.alibi_slopes(8)
    for argument in "alibi_slopes", "sinks":
        wanted = fovea.attention(*qkv, align="top-left", **{argument: slopes})
        for same in (slopes.tolist(), tuple(slopes.tolist()), slopes.astype(np.float64), slopes.astype(np.float16),
                     slopes.astype(BF16), np.repeat(slopes, 2)[::2]):
            np.testing.assert_array_equal(fovea.attention(*qkv, align="top-left", **{argument: same}), wanted)


@pytest.mark.parametrize("shape", [(2, 8, 13, 17), (2, 1, 1, 17), (1, 8, 13, 17), (13, 17), (17,), (1, 17), (13, 1), (8, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [bool, np.float32, np.float16, BF16], ids=lambda t: np.dtype(t).name)
def test_masks_broadcast(qkv, rng, level, shape, dtype):
    mask = rng.random(shape) < 0.6 if dtype is bool else rng.standard_normal(shape).astype(dtype)
    if dtype is not bool:
        mask[rng.random(shape) < 0.2] = -np.inf
    check(*qkv, level, mask=mask)


@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=lambda t: np.dtype(t).name)
def test_types_of_16_bits(qkv, level, dtype):
    q, k, v = (x.astype(dtype) for x in qkv)
    got = check(q, k, v, level)
    assert got[0].dtype == dtype and got[1].dtype == got[2].dtype == np.float32


def test_types_mix(qkv, level):
    q, k, v = qkv[0], qkv[1].astype(BF16), qkv[2].astype(np.float16)
    check(q, k, v, level)
    out = np.empty((2, 8, 13, 64), BF16)
    assert fovea.attention(q, k, v, out=out, context=level) is out
    assert_within_bound(out, attention(q, k, v), v, "bfloat16")


def test_arrays_without_batch_and_head(qkv, level):
    q, k, v = qkv
    whole, whole_lse, whole_weights = fovea.attention(q, k, v, return_lse=True, return_weights=True, context=level)
    out, lse, weights = fovea.attention(q[1], k[1], v[1], return_lse=True, return_weights=True, context=level)
    assert out.shape == (8, 13, 64) and lse.shape == (8, 13) and weights.shape == (8, 13, 17)
    for part, of in (out, whole), (lse, whole_lse), (weights, whole_weights):
        np.testing.assert_array_equal(part, of[1])
    out, lse = fovea.attention(q[1, :4].reshape(-1, 32), k[1, 0], v[1, 0], return_lse=True, context=level)
    assert out.shape == (52, 64) and lse.shape == (52,)
    assert_within_bound((out[None, None], lse[None, None]), attention(q[1:, :4].reshape(1, 1, 52, 32), k[1:, :1], v[1:, :1]),
                        v[1:, :1])


def test_layout_bshd_is_bhsd_transposed(qkv, level):
    wanted = fovea.attention(*qkv, return_lse=True, return_weights=True, context=level)
    transposed = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in qkv]
    got = fovea.attention(*transposed, layout="bshd", return_lse=True, return_weights=True, context=level)
    assert got[0].shape == (2, 13, 8, 64)
    np.testing.assert_array_equal(got[0].swapaxes(1, 2), wanted[0])
    np.testing.assert_array_equal(got[1], wanted[1])
    np.testing.assert_array_equal(got[2], wanted[2])
    np.testing.assert_array_equal(fovea.attention(*(x[0] for x in transposed), layout="bshd", context=level), got[0][0])


def test_strides_change_no_bit(qkv, level):
    wanted = fovea.attention(*qkv, context=level)
    spread = [np.full(tuple(2 * n for n in x.shape), np.nan, np.float32) for x in qkv]
    for whole, x in zip(spread, qkv):
        whole[::2, ::2, 1::2, ::2] = x
    views = [whole[::2, ::2, 1::2, ::2] for whole in spread]
    out = np.zeros((2, 64, 8, 13), np.float32).transpose(0, 2, 3, 1)
    assert fovea.attention(*views, out=out, context=level) is out
    np.testing.assert_array_equal(out, wanted)


def test_strides_of_zero_repeat(qkv, level):
    q, k, v = qkv
    k, v = (np.broadcast_to(x[:1], x.shape) for x in (k, v))
    np.testing.assert_array_equal(fovea.attention(q, k, v, context=level), fovea.attention(q, k.copy(), v.copy(), context=level))


def test_outputs_in_place(qkv):
    wanted = fovea.attention(*qkv, return_lse=True, return_weights=True)
    out, lse, weights = (np.full_like(x, np.nan) for x in wanted)
    got = fovea.attention(*qkv, out=out, lse=lse, weights=weights)
    assert got[0] is out and got[1] is lse and got[2] is weights
    for written, x in zip(got, wanted):
        np.testing.assert_array_equal(written, x)
    assert fovea.attention(*qkv, return_lse=True)[1].shape == (2, 8, 13)
    assert fovea.attention(*qkv, return_weights=True)[1].shape == (2, 8, 13, 17)


def test_lengths(qkv, level):
    q, k, v = qkv
    out, lse, weights = fovea.attention(q, k, v, seqlens_q=[13, 4], seqlens_kv=[17, 9], causal=True, align="bottom-right",
                                        return_lse=True, return_weights=True, context=level)
    for b, (nq, nk) in enumerate([(13, 17), (4, 9)]):
        part = q[b:b + 1, :, :nq], k[b:b + 1, :, :nk], v[b:b + 1, :, :nk]
        got = out[b:b + 1, :, :nq], lse[b:b + 1, :, :nq], weights[b:b + 1, :, :nq, :nk]
        assert_within_bound(got, attention(*part, causal=True, align="bottom-right"), part[2])
    assert not out[1, :, 4:].any() and not weights[1, :, 4:].any() and np.all(lse[1, :, 4:] == -np.inf)


def test_rows_behind_the_lengths_keep_what_an_output_holds(qkv):
    out = np.full((2, 8, 13, 64), 7, np.float32)
    fovea.attention(*qkv, seqlens_q=[13, 4], out=out)
    assert np.all(out[1, :, 4:] == 7) and not np.any(out[1, :, :4] == 7)


@pytest.mark.parametrize("make", [list, tuple, np.array, lambda x: np.array(x, np.int32), lambda x: np.repeat(np.int32(x), 3)[::3]])
def test_whole_numbers_of_any_kind(qkv, make):
    wanted = fovea.attention(*qkv, seqlens_kv=[17, 9])
    np.testing.assert_array_equal(fovea.attention(*qkv, seqlens_kv=make([17, 9])), wanted)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_packed_batches(rng, level, layout):
    lengths_q, lengths_kv = [4, 0, 7], [5, 3, 9]
    q, k, v = (rng.standard_normal(s, np.float32) for s in ((8, 13, 32), (2, 20, 32), (2, 20, 64)))
    turn = (lambda x: np.ascontiguousarray(x.swapaxes(0, 1))) if layout == "bshd" else lambda x: x
    offsets_q, offsets_kv = np.cumsum([1] + lengths_q), np.cumsum([0] + lengths_kv)
    out, lse = fovea.attention(turn(q), turn(k), turn(v), cu_seqlens_q=offsets_q, cu_seqlens_kv=offsets_kv, causal=True,
                               align="bottom-right", layout=layout, return_lse=True, context=level)
    out = turn(out)
    for b in range(3):
        rows, keys = slice(offsets_q[b], offsets_q[b + 1]), slice(offsets_kv[b], offsets_kv[b + 1])
        part = q[None, :, rows], k[None, :, keys], v[None, :, keys]
        assert_within_bound((out[None, :, rows], lse[None, :, rows]), attention(*part, causal=True, align="bottom-right"), part[2])
    assert not out[:, 0].any() and np.all(lse[:, 0] == -np.inf) and not out[:, 12:].any()


def test_packed_queries_of_unpacked_keys_and_a_mask_of_the_longest_segment(rng, level):
    q, k, v = (rng.standard_normal(s, np.float32) for s in ((8, 11, 32), (2, 2, 17, 32), (2, 2, 17, 64)))
    mask = rng.random((2, 1, 7, 17)) < 0.5
    out = fovea.attention(q, k, v, cu_seqlens_q=[0, 4, 11], mask=mask, context=level)
    for b, rows in enumerate((slice(0, 4), slice(4, 11))):
        part = q[None, :, rows], k[b:b + 1], v[b:b + 1]
        assert_within_bound(out[None, :, rows], attention(*part, mask=mask[b:b + 1, :, :rows.stop - rows.start]), part[2])
    with pytest.raises(fovea.ArgumentError, match="mask"):
        fovea.attention(q, k, v, cu_seqlens_q=[0, 4, 11], mask=mask[:, :, :6])


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_pages_change_no_bit(rng, level, layout):
    q, k, v = (rng.standard_normal(s, np.float32) for s in ((2, 8, 1, 32), (2, 2, 12, 32), (2, 2, 12, 64)))
    table = np.array([[4, 1, 0], [2, 6, -1]], np.int32)
    pools = []
    for x in k, v:
        pool = np.full((7, 2, 4, x.shape[-1]), np.nan, np.float32)
        for b in range(2):
            for j in range(3):
                if table[b, j] >= 0:
                    pool[table[b, j]] = x[b, :, 4 * j:4 * j + 4]
        pools.append(np.ascontiguousarray(pool.swapaxes(1, 2)) if layout == "bshd" else pool)
    lengths = [11, 8]
    turn = (lambda x: x.swapaxes(1, 2)) if layout == "bshd" else lambda x: x
    wanted = fovea.attention(q, k, v, seqlens_kv=lengths, context=level)
    for same in table, table.astype(np.int64), table.tolist(), np.repeat(table, 2, axis=1)[:, ::2]:
        got = fovea.attention(turn(q), *pools, block_table=same, seqlens_kv=lengths, layout=layout, context=level)
        np.testing.assert_array_equal(turn(got), wanted)
    # All entries have as many keys as seq_kv says.
    got = fovea.attention(turn(q), *pools, block_table=table, seq_kv=7, layout=layout, context=level)
    np.testing.assert_array_equal(turn(got), fovea.attention(q, k[:, :, :7], v[:, :, :7], context=level))


@pytest.mark.parametrize("shape", ["whole", "without dim", "one a layer"])
def test_int8_caches(rng, level, shape):
    q = rng.standard_normal((2, 8, 3, 32), np.float32)
    k, v = (rng.integers(-128, 128, (2, 2, 40, d), np.int8) for d in (32, 64))
    k_scale, v_scale = (rng.random((1, 1, 1, 1) if shape == "one a layer" else (2, 2, 40, 1), np.float32) / 50 for _ in range(2))
    cut = (lambda x: x[..., 0]) if shape == "without dim" else lambda x: x
    got = fovea.attention(q, k, v, k_scale=cut(k_scale), v_scale=cut(v_scale), return_lse=True, context=level)
    assert_within_bound(got, attention(q, k * np.float64(k_scale), v * np.float64(v_scale)), v * np.float64(v_scale))


def test_blocks_of_ggml(rng, level):
    q = rng.standard_normal((1, 4, 3, 64), np.float32)
    k_blocks, k = blocks_of_q8_0(rng.standard_normal((1, 2, 40, 64), np.float32))
    v_blocks = rng.integers(0, 256, (1, 2, 40, 36), np.uint8)
    v_blocks[..., 0::18], v_blocks[..., 1::18] = 0x66, 0x2e  # a scale of 0.1
    v = values_of_q4_0(v_blocks)
    got = fovea.attention(q, k_blocks, v_blocks, k_type="q8_0", v_type="q4_0", return_lse=True, context=level)
    assert_within_bound(got, attention(q, k, v), v)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k_blocks, v_blocks)]
    same = fovea.attention(*turned, k_type="q8_0", v_type="q4_0", layout="bshd", context=level)
    np.testing.assert_array_equal(same.swapaxes(1, 2), got[0])


@pytest.mark.parametrize("axis", range(7))
def test_sizes_of_0(axis):
    sizes = [2, 4, 2, 3, 5, 8, 6]
    sizes[axis] = 0
    batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v = sizes
    if heads_kv == 0:
        heads_q = 0
    q, k, v = (np.ones(s, np.float32) for s in ((batch, heads_q, seq_q, dim_k), (batch, heads_kv, seq_kv, dim_k),
                                                (batch, heads_kv, seq_kv, dim_v)))
    out, lse, weights = fovea.attention(q, k, v, return_lse=True, return_weights=True)
    assert out.shape == (batch, heads_q, seq_q, dim_v) and weights.shape == (batch, heads_q, seq_q, seq_kv)
    assert np.all(out == (1 if seq_kv else 0))
    if seq_kv == 0:
        assert np.all(lse == -np.inf)


def test_the_corner_has_to_be_named_where_it_matters(qkv):
    q, k, v = qkv
    with pytest.raises(fovea.ArgumentError, match="align"):
        fovea.attention(q, k, v, causal=True)
    with pytest.raises(fovea.ArgumentError, match="align"):
        fovea.attention(q, k[:, :, :13], v[:, :, :13], causal=True, seqlens_kv=[13, 2])
    square = fovea.attention(q, k[:, :, :13], v[:, :, :13], causal=True)
    for align in "top-left", "bottom-right":
        np.testing.assert_array_equal(fovea.attention(q, k[:, :, :13], v[:, :, :13], causal=True, align=align), square)


def test_explain_says_what_a_call_does(qkv):
    text = fovea.explain(*qkv, causal=True, align="bottom-right", return_lse=True, return_weights=True,
                         context=fovea.Context(isa="scalar", threads=1))
    assert text["level"] == "scalar" and text["error"] == "" and text["features"] == ["causal"]
    assert "scale: nan" in fovea.explain(*qkv, scale=float("nan"))["error"]
    with pytest.raises(fovea.ArgumentTypeError):
        fovea.explain(*qkv, scale="much")
