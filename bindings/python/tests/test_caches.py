"""fovea.kv_append() and fovea.merge()."""

import ml_dtypes
import numpy as np
import pytest

import fovea
from oracle import assert_within_bound, attention, blocks_of_q8_0, values_of_q4_0

BF16 = ml_dtypes.bfloat16


@pytest.fixture
def new(rng):
    return [rng.standard_normal((2, 2, 3, dim), np.float32) for dim in (32, 64)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_float_caches_hold_the_rounded_numbers(new, dtype, layout):
    k, v = (np.zeros((2, 2, 10, dim), dtype) for dim in (32, 64))
    turn = (lambda x: x.swapaxes(1, 2)) if layout == "bshd" else lambda x: x
    fovea.kv_append(turn(k), turn(v), turn(new[0]), turn(new[1]), [4, 7], [3, 1], layout=layout)
    for cache, added in zip((k, v), new):
        wanted = np.zeros_like(cache)
        wanted[0, :, 4:7] = added[0].astype(dtype)
        wanted[1, :, 7:8] = added[1, :, :1].astype(dtype)
        np.testing.assert_array_equal(cache, wanted)


def test_all_new_tokens_where_no_count_is_given(new):
    k, v = (np.zeros((2, 2, 10, dim), np.float32) for dim in (32, 64))
    fovea.kv_append(k, v, *new, np.array([0, 7]))
    np.testing.assert_array_equal(k[0, :, :3], new[0][0])
    np.testing.assert_array_equal(v[1, :, 7:], new[1][1])
    fovea.kv_append(k, None, new[0][:, :, :1], None, [9, 0])
    np.testing.assert_array_equal(k[0, :, 9], new[0][0, :, 0])


def test_int8_caches_have_a_scale_for_each_token_and_head(new):
    k, v = (np.zeros((2, 2, 10, dim), np.int8) for dim in (32, 64))
    k_scale, v_scale = np.zeros((2, 2, 10), np.float32), np.zeros((2, 2, 10, 1), np.float32)
    fovea.kv_append(k, v, *new, [4, 7], k_scale=k_scale, v_scale=v_scale)
    wanted = np.abs(new[0]).max(-1) / np.float32(127)
    np.testing.assert_array_equal(k_scale[0, :, 4:7], wanted[0])
    np.testing.assert_array_equal(k[0, :, 4:7], np.rint(new[0][0] / wanted[0][..., None]).astype(np.int8))
    assert np.all(np.abs(v[1, :, 7:] * v_scale[1, :, 7:] - new[1][1]) <= v_scale[1, :, 7:] / 2 * 1.0001)


def test_blocks_are_those_of_ggml(new):
    k, v = np.zeros((2, 2, 10, 34), np.uint8), np.zeros((2, 2, 10, 36), np.uint8)
    fovea.kv_append(k, v, *new, [4, 7], k_type="q8_0", v_type="q4_0")
    np.testing.assert_array_equal(k[0, :, 4:7], blocks_of_q8_0(new[0])[0][0])
    step = np.abs(new[1]).reshape(2, 2, 3, 2, 32).max(-1) / 8
    assert np.all(np.abs(values_of_q4_0(v[1, :, 7:]) - new[1][1]).reshape(2, 3, 2, 32) <= 1.01 * step[1][..., None])


def test_generation_step_by_step_is_one_causal_call(rng):
    q, k, v = (rng.standard_normal((2, heads, 12, 32), np.float32) for heads in (4, 2, 2))
    whole = attention(q, k, v, causal=True)
    pools = [np.zeros((8, 2, 4, 32), np.float32) for _ in range(2)]
    table = [[5, 0, 2], [7, 1, 3]]
    for i in range(12):
        now = slice(i, i + 1)
        fovea.kv_append(*pools, k[:, :, now], v[:, :, now], [i, i], block_table=table)
        out = fovea.attention(q[:, :, now], *pools, block_table=table, seqlens_kv=[i + 1, i + 1])
        expected = tuple(x[:, :, now] for x in whole)
        assert_within_bound(out, expected, v)


def test_an_append_that_does_not_fit_writes_nothing(new):
    k, v = (np.zeros((2, 2, 10, dim), np.float32) for dim in (32, 64))

    def fails(match, *arrays, **options):
        with pytest.raises(fovea.Error, match=match):
            fovea.kv_append(*arrays, **options)
        assert not k.any() and not v.any()

    fails(r"^count\[1\]: 3 tokens", k, v, *new, [0, 8])
    fails(r"^count\[1\]: 4 is more", k, v, *new, [0, 2], [1, 4])
    fails(r"^start\[0\]", k, v, *new, [-1, 8], [1, 1])
    fails("^start: its length", k, v, *new, [1])
    fails("^v_new: must be given", k, v, new[0], None, [0, 0])
    fails("^k: must be given", None, None, None, None, [0, 0])
    fails("^k_new: its dim", k, v, new[0][..., :31], new[1], [0, 0])
    fails("^v_new: its number of tokens", k, v, new[0], new[1][:, :, :2], [0, 0])
    fails("^k: its batch size", k[:1], v[:1], *new, [0, 0])
    fails("^k_scale: must be given", k.astype(np.int8), v, *new, [0, 0])
    fails("^k_new: must be of float32", k, v, new[0].astype(np.float64), new[1], [0, 0])
    fails("^block_table: 2 at batch entry 1", k, v, *new, [0, 0], block_table=[[0], [2]])
    frozen = k.copy()
    frozen.flags.writeable = False
    fails("^k: is read-only", frozen, v, *new, [0, 0])
    fails("^k", k, v, k[:, :, :3], new[1], [0, 0])  # overlaps


def test_merged_parts_are_the_whole(rng):
    q, k, v = (rng.standard_normal(s, np.float32) for s in ((2, 8, 5, 32), (2, 2, 30, 32), (2, 2, 30, 64)))
    cuts = [slice(0, 7), slice(7, 8), slice(8, 30)]
    parts = [fovea.attention(q, k[:, :, c], v[:, :, c], return_lse=True) for c in cuts]
    expected = attention(q, k, v)
    assert_within_bound(fovea.merge(parts), expected, v)
    out, lse = np.empty((2, 5, 8, 64), np.float32).swapaxes(1, 2), np.empty((2, 8, 5), np.float32)
    got = fovea.merge(tuple(parts), out=out, lse=lse)
    assert got[0] is out and got[1] is lse
    assert_within_bound(got, expected, v)
    turned = [(np.ascontiguousarray(part[0].swapaxes(1, 2)), part[1]) for part in parts]
    np.testing.assert_array_equal(fovea.merge(turned, layout="bshd")[0].swapaxes(1, 2), out)
    into_a_part = fovea.merge(parts, out=parts[0][0], lse=parts[0][1])
    np.testing.assert_array_equal(into_a_part[0], out)


def test_a_shared_prefix_of_packed_queries(rng):
    q, k, v = (rng.standard_normal(s, np.float32) for s in ((4, 6, 32), (2, 9, 32), (2, 9, 32)))
    prefix_k, prefix_v = (rng.standard_normal((2, 20, 32), np.float32) for _ in range(2))
    offsets_q, offsets_kv = [0, 2, 5], [0, 4, 9]
    prefix = fovea.attention(q, prefix_k, prefix_v, return_lse=True)
    own = fovea.attention(q, k, v, cu_seqlens_q=offsets_q, cu_seqlens_kv=offsets_kv, causal=True, align="bottom-right",
                          return_lse=True)
    out, lse = fovea.merge([prefix, own], cu_seqlens_q=offsets_q)
    for b in range(2):
        rows, keys = slice(*offsets_q[b:b + 2]), slice(*offsets_kv[b:b + 2])
        whole_k, whole_v = (np.concatenate([p, x[:, keys]], 1)[None] for p, x in ((prefix_k, k), (prefix_v, v)))
        expected = attention(q[None, :, rows], whole_k, whole_v, causal=True, align="bottom-right")
        assert_within_bound((out[None, :, rows], lse[None, :, rows]), expected, whole_v)
    assert not out[:, 5].any() and np.all(lse[:, 5] == -np.inf)


def test_merging_rows_of_lengths(rng):
    parts = [(np.full((2, 1, 3, 4), value, np.float32), np.zeros((2, 1, 3), np.float32)) for value in (1, 3)]
    out, lse = fovea.merge(parts, seqlens_q=[3, 1])
    np.testing.assert_array_equal(out[:, 0, :, 0], [[2, 2, 2], [2, 0, 0]])
    assert np.all(lse[1, 0, 1:] == -np.inf)


def test_parts_that_do_not_fit(rng):
    good = np.ones((2, 1, 3, 4), np.float32), np.ones((2, 1, 3), np.float32)
    for match, parts in {
        "^parts: must have at least": [], "^parts: must be a list": None, r"^parts\[1\]: must be a pair": [good, good[0]],
        r"^parts\[1\].lse: must have the shape": [good, (good[0], good[1][:1])],
        r"^parts\[1\].seq_q": [good, (good[0][:, :, :2], good[1][:, :, :2])],
        r"^parts\[0\].out: must be of float32": [(good[0].astype(int), good[1])],
        r"^parts\[1\].out: has 3 axes": [good, (good[0][0], good[1][0])],
    }.items():
        with pytest.raises(fovea.Error, match=match):
            fovea.merge(parts)
