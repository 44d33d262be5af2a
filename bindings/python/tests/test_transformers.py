"""Models of transformers with attn_implementation="fovea". The tests are skipped where it is not installed.

Logits are compared with eager attention in float32. Both are float32 arithmetic in another order: what differs is a few units of 2^-24 of a
layer's sums, here below 2^-16 of the greatest logit.
"""

import collections

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
import fovea.torch  # noqa: E402
import fovea.transformers  # noqa: E402
from transformers.masking_utils import sdpa_mask  # noqa: E402

BOUND = 2.0**-16
DECODER = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
           "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
WINDOW = 16
DECODERS = {
    "llama": lambda: transformers.LlamaConfig(**DECODER),
    "mistral": lambda: transformers.MistralConfig(**DECODER, sliding_window=WINDOW),
    "gemma2": lambda: transformers.Gemma2Config(**DECODER, head_dim=16, sliding_window=WINDOW, attn_logit_softcapping=2.0,
                                                query_pre_attn_scalar=24),
    "gpt-oss": lambda: transformers.GptOssConfig(**DECODER, head_dim=16, sliding_window=WINDOW, num_local_experts=2,
                                                 num_experts_per_tok=1),
}


@pytest.fixture(autouse=True)
def registered():
    fovea.transformers.register()
    fovea.torch.reset_stats()


@pytest.fixture
def masks(monkeypatch):
    """Counts the masks of every query and key that are made for Fovea."""
    made = collections.Counter()

    def counted(*arguments, **options):
        made["masks"] += 1
        return sdpa_mask(*arguments, **options)

    monkeypatch.setattr(fovea.transformers, "sdpa_mask", counted)
    return made


def model_of(config, kind=transformers.AutoModelForCausalLM, size=2):
    """With weights of such a size that no logit hides what attention does."""
    torch.manual_seed(1)
    model = kind.from_config(config, attn_implementation="eager", dtype=torch.float32).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if weight.dim() == 1 and "sinks" in name:
            weight.normal_()
        elif weight.dim() > 1:
            weight.normal_(std=size * weight.shape[-1]**-0.5)
    return model


def by_both(model, run):
    """What run(model) gives by eager attention and by Fovea's."""
    model.set_attn_implementation("eager")
    wanted = run(model)
    model.set_attn_implementation("fovea")
    before = fovea.torch.stats()["calls"]
    got = run(model)
    assert fovea.torch.stats()["calls"] > before
    return got, wanted


def assert_close(got, wanted, where=slice(None)):
    got, wanted = got[where], wanted[where]
    assert got.abs().max() > 0.1
    torch.testing.assert_close(got, wanted, atol=BOUND * wanted.abs().max().item(), rtol=0)


def tokens(batch=2, length=40):
    return torch.randint(2, 200, (batch, length), generator=torch.Generator().manual_seed(3))


def padded(lengths=(40, 27), side="left"):
    ids = tokens(len(lengths), max(lengths))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, -length:] = 1 if side == "left" else 0
        if side == "right":
            mask[row, :length] = 1
    return ids.masked_fill(mask == 0, 0), mask


@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name, masks):
    got, wanted = by_both(model_of(DECODERS[name]()), lambda model: model(tokens()).logits)
    assert_close(got, wanted)
    assert not masks


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_with_padding(name, side, masks):
    ids, mask = padded(side=side)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    got, wanted = by_both(model_of(DECODERS[name]()), lambda model: model(ids, attention_mask=mask, position_ids=positions).logits)
    assert_close(got, wanted, mask.bool())
    assert not masks


def generate(model, **options):
    ids, mask = padded()
    with torch.inference_mode():
        done = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False, output_scores=True,
                              return_dict_in_generate=True, **options)
    return torch.stack(done.scores, 1), done.sequences


@pytest.mark.parametrize("name", DECODERS)
def test_generation_of_a_padded_batch(name, masks):
    (got, sequence), (wanted, other) = by_both(model_of(DECODERS[name]()), generate)
    assert torch.equal(sequence, other)
    assert_close(got, wanted)
    assert not masks


@pytest.mark.parametrize("name", DECODERS)
def test_generation_behind_a_cache_of_fixed_size(name):
    (got, sequence), (wanted, other) = by_both(model_of(DECODERS[name]()), lambda model: generate(
        model, cache_implementation="static", disable_compile=True))
    assert torch.equal(sequence, other)
    assert_close(got, wanted)


@pytest.mark.parametrize("name", DECODERS)
def test_a_prompt_in_pieces(name, masks):
    def run(model):
        cache = transformers.DynamicCache(config=model.config)
        return torch.cat([model(piece, cache=cache).logits for piece in tokens().split([13, 20, 1, 6], 1)], 1)

    got, wanted = by_both(model_of(DECODERS[name]()), run)
    assert_close(got, wanted)
    assert not masks


def test_a_prompt_in_pieces_behind_a_cache_of_fixed_size(masks):
    def run(model):
        cache = transformers.StaticCache(config=model.config, max_cache_len=64)
        return torch.cat([model(piece, cache=cache).logits for piece in tokens().split([13, 20, 7], 1)], 1)

    got, wanted = by_both(model_of(DECODERS["llama"]()), run)
    assert_close(got, wanted)
    assert not masks


def test_packed_sequences():
    positions = torch.cat([torch.arange(15), torch.arange(25)])[None]
    got, wanted = by_both(model_of(DECODERS["mistral"]()), lambda model: model(tokens(1), position_ids=positions, use_cache=False).logits)
    assert_close(got, wanted)


def test_masks_of_ones_own():
    allowed = torch.rand(2, 1, 40, 40, generator=torch.Generator().manual_seed(4)) < 0.5
    allowed |= torch.eye(40, dtype=torch.bool)
    added = torch.zeros(2, 1, 40, 40).masked_fill(~allowed, torch.finfo(torch.float32).min)
    got, wanted = by_both(model_of(DECODERS["llama"]()), lambda model: model(tokens(), attention_mask=added).logits)
    assert_close(got, wanted)


def test_chunked_attention():
    config = transformers.Llama4TextConfig(**DECODER, head_dim=8, attention_chunk_size=8, num_local_experts=2, interleave_moe_layer_step=1,
                                           no_rope_layers=[1, 1], intermediate_size_mlp=96)
    got, wanted = by_both(model_of(config), lambda model: model(tokens()).logits)
    assert_close(got, wanted)


def test_layers_that_do_not_tell_their_window():
    config = transformers.Qwen2MoeConfig(**DECODER, sliding_window=WINDOW, use_sliding_window=True,
                                         max_window_layers=1, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32,
                                         shared_expert_intermediate_size=32)
    got, wanted = by_both(model_of(config), lambda model: model(tokens()).logits)
    assert_close(got, wanted)


def test_sentence_encoders(masks):
    config = transformers.BertConfig(vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96)
    model = model_of(config, transformers.AutoModel)
    for side in "left", "right":
        ids, mask = padded(side=side)
        got, wanted = by_both(model, lambda model: model(ids, attention_mask=mask).last_hidden_state)
        assert_close(got, wanted, mask.bool())
    assert not masks


def test_image_encoders():
    config = transformers.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=48,
                                    patch_size=8)
    image = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(5))
    got, wanted = by_both(model_of(config, transformers.AutoModel), lambda model: model(image).last_hidden_state)
    assert_close(got, wanted)


def test_encoders_with_decoders(masks):
    config = transformers.WhisperConfig(vocab_size=200, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, max_source_positions=30,
                                        max_target_positions=64, num_mel_bins=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                        decoder_start_token_id=1)
    model = model_of(config, transformers.AutoModelForSpeechSeq2Seq)
    sound = torch.randn(2, 16, 60, generator=torch.Generator().manual_seed(5))
    ids, mask = padded(side="right")
    got, wanted = by_both(model, lambda model: model(sound, decoder_input_ids=ids, decoder_attention_mask=mask).logits)
    assert_close(got, wanted, mask.bool())

    def run(model):
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
        return torch.cat([model(sound, decoder_input_ids=piece, cache=cache).logits for piece in ids[:1].split([13, 20, 7], 1)],
                         1)

    sound = sound[:1]
    got, wanted = by_both(model, run)
    assert_close(got, wanted)
    assert not masks


def test_biases_of_positions(masks):
    config = transformers.T5Config(vocab_size=200, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, pad_token_id=0,
                                   decoder_start_token_id=0, eos_token_id=1)
    model = model_of(config, transformers.AutoModelForSeq2SeqLM, size=0.5)  # its scores are not scaled
    ids, mask = padded(side="right")
    for options in {}, {"attention_mask": mask, "decoder_attention_mask": mask}:
        got, wanted = by_both(model, lambda model: model(ids, decoder_input_ids=ids, **options).logits)
        assert_close(got, wanted, mask.bool())
    assert not masks


@pytest.mark.parametrize("name", DECODERS)
def test_compiled_models_have_no_break(name):
    model = model_of(DECODERS[name]())
    model.set_attn_implementation("eager")
    if name == "gpt-oss":
        model.set_experts_implementation("batched_mm")
    ids, mask = padded()
    with torch.inference_mode():
        for options in {}, {"attention_mask": mask}:
            wanted = model(ids, use_cache=False, **options).logits
            model.set_attn_implementation("fovea")
            torch._dynamo.reset()
            got = torch.compile(model, fullgraph=True, backend="aot_eager")(ids, use_cache=False, **options).logits
            model.set_attn_implementation("eager")
            assert_close(got, wanted, mask.bool())
    assert fovea.torch.stats()["calls"] == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_models_of_16_bits_are_as_near_to_float32_as_with_eager_attention(dtype):
    model = model_of(DECODERS["llama"]())
    ids, mask = padded()

    def logits(model):
        return model(ids, attention_mask=mask).logits.float()

    wanted = logits(model)
    got, eager = ((logits - wanted)[mask.bool()].square().mean().sqrt() for logits in by_both(model.to(dtype), logits))
    assert got <= 1.25 * eager


def test_a_backward_pass_is_refused():
    model = model_of(DECODERS["llama"]()).requires_grad_(True)
    model.set_attn_implementation("fovea")
    loss = model(tokens(), labels=tokens()).loss
    with pytest.raises(RuntimeError, match="fovea"):
        loss.backward()


def test_dropout_is_refused():
    model = model_of(transformers.LlamaConfig(**DECODER, attention_dropout=0.1)).train()
    model.set_attn_implementation("fovea")
    with pytest.raises(fovea.UnsupportedError, match="^dropout: "):
        model(tokens())
