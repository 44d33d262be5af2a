import torch
import torch.nn.functional as F

import fovea.torch

q, k, v = torch.randn(3, 1, 8, 100, 64)
with fovea.torch.enabled():
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
print(fovea.torch.stats())
