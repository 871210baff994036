"""A Gaussian process whose length scales are not fitted but averaged over, and which grows a point at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

#: What is believed of a length scale before any data: about 0.8 of an axis, within a factor of 2.2 either way.
SCALE, SCALE_SPREAD = 0.8, 0.8
#: The same of the noise's part in the variance.
NOISE, NOISE_SPREAD, NOISE_RANGE = 1e-3, 2.0, (1e-6, 0.3)
#: Points that are taken in before memory is made for more.
ROOM = 32
#: The process's variance: so many observations' worth of belief that it is 1.
VARIANCE_WEIGHT = 2.0


def matern(squared: Any) -> Any:
    """Matérn 5/2 of squared distances: twice differentiable, as rough as times of kernels are."""
    r = np.sqrt(5.0 * np.maximum(squared, 0.0))
    return (1.0 + r + r * r / 3.0) * np.exp(-r)


def squared_distances(a: Any, b: Any) -> Any:
    """(m, d), (n, d) → (m, n)."""
    return np.maximum((a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2.0 * a @ b.T, 0.0)


class Process:
    """One draw of length scales and noise, and what it predicts at a fixed set of candidates.

    `walk` moves the draw through its posterior (Metropolis), `condition` takes in all points anew, `add` one more,
    which costs a row instead of a decomposition; `predict` says mean and deviation at each candidate.
    """

    def __init__(self, dimensions: int) -> None:
        self.scales = np.full(dimensions, SCALE)
        self.noise = NOISE

    def walk(self, points: Any, values: Any, rng: Any, steps: int) -> None:
        """Take Metropolis steps through the posterior given points (n, d) and values (n,)."""
        now = _log_posterior(self.scales, self.noise, points, values)
        for _ in range(steps):
            scales, noise = self._proposal(rng)
            then = _log_posterior(scales, noise, points, values)
            if then >= now or rng.random() < math.exp(then - now):
                now, self.scales, self.noise = then, scales, noise

    def _proposal(self, rng: Any) -> tuple[Any, float]:
        """All scales together, one of them far, each a little, or the noise: some fit any stage of the walk."""
        dimensions, kind = len(self.scales), int(rng.integers(4))
        if kind == 0:
            return self.scales * math.exp(rng.normal(0, 0.3)), self.noise
        if kind == 1:
            scales = self.scales.copy()
            scales[rng.integers(dimensions)] *= math.exp(rng.normal(0, 0.8))
            return scales, self.noise
        if kind == 2:
            return self.scales * np.exp(rng.normal(0, 0.3, dimensions)), self.noise
        low, high = NOISE_RANGE
        return self.scales, min(max(self.noise * math.exp(rng.normal(0, 0.7)), low), high)

    def condition(self, points: Any, candidates: Any) -> None:
        """Take in points (n, d), to predict at candidates (m, d)."""
        self._points, self._candidates = points / self.scales, candidates / self.scales
        covariance = matern(squared_distances(self._points, self._points))
        covariance[np.diag_indices(len(points))] += self.noise
        self._inverse = np.linalg.inv(np.linalg.cholesky(covariance))
        rows = self._inverse @ matern(squared_distances(self._points, self._candidates))
        self._rows = np.empty((len(points) + ROOM, len(candidates)))  # grows in place: it is large
        self._rows[: len(points)] = rows
        self._explained = (rows**2).sum(0)

    def add(self, point: Any) -> None:
        """Take in one point (d,) more."""
        new = (point / self.scales)[None]
        last = self._inverse @ matern(squared_distances(self._points, new))[:, 0]
        pivot = math.sqrt(max(1.0 + self.noise - float(last @ last), 1e-8))
        n = len(last)
        row = (matern(squared_distances(new, self._candidates))[0] - last @ self._rows[:n]) / pivot
        if n == len(self._rows):
            self._rows = np.vstack([self._rows, np.empty((ROOM, len(row)))])
        self._rows[n] = row
        inverse = np.zeros((n + 1, n + 1))
        inverse[:n, :n], inverse[n, :n], inverse[n, n] = self._inverse, -(last @ self._inverse) / pivot, 1.0 / pivot
        self._inverse, self._points = inverse, np.vstack([self._points, new])
        self._explained += row**2

    def predict(self, values: Any) -> tuple[Any, Any]:
        """(mean, standard deviation) at each candidate, given a value for each point taken in."""
        weights = self._inverse @ values
        variance = _variance(weights)
        return weights @ self._rows[: len(weights)], np.sqrt(np.maximum(1.0 - self._explained, 1e-8) * variance)


def expected_improvement(best: float, mean: Any, deviation: Any) -> Any:
    """How far below `best` a normal variable is expected to fall; the normal CDF by a logistic, 0.01 off at most."""
    u = np.clip((best - mean) / deviation, -30.0, 30.0)
    return deviation * (u / (1.0 + np.exp(-1.702 * u)) + np.exp(-u * u / 2.0) / math.sqrt(2.0 * math.pi))


def _variance(weights: Any) -> float:
    return (float(weights @ weights) + VARIANCE_WEIGHT) / (len(weights) + VARIANCE_WEIGHT)


def _log_posterior(scales: Any, noise: float, points: Any, values: Any) -> float:
    """Up to a constant, with the process's variance at its most likely."""
    scaled = points / scales
    covariance = matern(squared_distances(scaled, scaled))
    covariance[np.diag_indices(len(points))] += noise
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:  # two points of the same row and hardly any noise: not a draw to keep
        return -1e9
    likelihood = -0.5 * len(values) * math.log(_variance(np.linalg.solve(lower, values)))
    likelihood -= float(np.log(np.diag(lower)).sum())
    prior = -0.5 * float(((np.log(scales / SCALE) / SCALE_SPREAD) ** 2).sum())
    return likelihood + prior - 0.5 * (math.log(noise / NOISE) / NOISE_SPREAD) ** 2
