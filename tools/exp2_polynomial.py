#!/usr/bin/env python3
"""Derives the polynomials for 2^f in lib/kernels/generic/simd.inl.h.

Among the polynomials of degree 5 with constant term 1 it finds the one with the smallest largest relative error, as a linear program
on a grid, then rounds the coefficients to float and measures the error of the float evaluation. Needs numpy and scipy.
"""
import numpy as np
from scipy.optimize import linprog

DEGREE = 5


def minimax(low, high, points=4001):
    f = np.linspace(low, high, points)
    weight = 2.0**-f
    powers = np.stack([f**i * weight for i in range(1, DEGREE + 1)], axis=1)
    target = 1 - weight
    scale = 1e6  # keeps the error, about 1e-7, well above the solver's tolerance
    slack = np.full((points, 1), -1 / scale)
    result = linprog(
        [0] * DEGREE + [1],
        A_ub=np.block([[powers, slack], [-powers, slack]]),
        b_ub=np.concatenate([target, -target]),
        bounds=[(None, None)] * DEGREE + [(0, None)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    return result.x[:DEGREE], result.x[DEGREE] / scale


def fma(a, b, c):
    return (a.astype(np.float64) * b.astype(np.float64) + np.float64(c)).astype(np.float32)


def float_error(coefficients, low, high):
    f = np.linspace(low, high, 4_000_001).astype(np.float32)
    p = np.full_like(f, coefficients[-1])
    for c in coefficients[-2::-1]:
        p = fma(p, f, c)
    p = fma(p, f, np.float32(1))
    return np.abs(p / 2.0 ** f.astype(np.float64) - 1).max()


def main():
    for name, low, high in (("kExp2Centred", -0.5, 0.5), ("kExp2Unit", 0.0, 1.0)):
        exact, error = minimax(low, high)
        rounded = exact.astype(np.float32)
        print(f"{name}: {', '.join(float(c).hex() for c in rounded)}")
        print(f"  relative error on [{low}, {high}]: {error:.2e} exact, {float_error(rounded, low, high):.2e} in float")


if __name__ == "__main__":
    main()
