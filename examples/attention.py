import numpy as np

import fovea

q = np.array([[4, 0]], np.float32)  # [seq, dim]; with heads and batch [batch, head, seq, dim]
k = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
v = np.array([[10, 1], [20, 2], [30, 3]], np.float32)
out, weights = fovea.attention(q, k, v, return_weights=True)
print(f"weights {weights[0].round(3)}, output {out[0].round(3)}")
