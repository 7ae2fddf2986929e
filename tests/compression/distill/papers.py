"""The losses once more, in NumPy and float64, as the papers' formulas have them."""

import itertools
import math

import numpy as np
from scipy.special import rel_entr, softmax

T = 3.0


def logits(teacher, student, labels):
    """Hinton 2015: T^2 KL(p || q)."""
    p, q = softmax(teacher / T, -1), softmax(student / T, -1)
    return T**2 * rel_entr(p, q).sum(-1).mean()


def dkd(teacher, student, labels, alpha=1.0, beta=8.0):
    """Zhao 2022, equations 5 to 7: b are right and wrong, p-hat the others."""
    total = 0.0
    for t, s, label in zip(teacher, student, labels, strict=True):
        p, q = softmax(t / T), softmax(s / T)
        right = rel_entr([p[label], 1 - p[label]], [q[label], 1 - q[label]]).sum()
        p_hat, q_hat = np.delete(p, label), np.delete(q, label)
        p_hat, q_hat = p_hat / p_hat.sum(), q_hat / q_hat.sum()
        total += T**2 * (alpha * right + beta * rel_entr(p_hat, q_hat).sum())
    return total / len(labels)


def dist(teacher, student, labels, beta=2.0, gamma=0.5):
    """Huang 2022, equations 9 and 10, times T^2."""
    p, q = softmax(teacher / T, -1), softmax(student / T, -1)
    rows = [1 - np.corrcoef(a, b)[0, 1] for a, b in zip(p, q, strict=True)]
    columns = [1 - np.corrcoef(a, b)[0, 1] for a, b in zip(p.T, q.T, strict=True)]
    return T**2 * (beta * np.mean(rows) + gamma * np.mean(columns))


def features(teacher, student):
    """Romero 2015, equation 3, per entry and without the half."""
    return np.mean((teacher - student) ** 2)


def attention_transfer(teacher, student):
    """Zagoruyko 2017, equation 2, with p = 2, for one pair."""
    total = 0.0
    for t, s in zip(teacher, student, strict=True):
        maps = [(f**2).sum(-1).ravel() for f in (t, s)]
        maps = [m / np.linalg.norm(m) for m in maps]
        total += 0.5 * np.linalg.norm(maps[0] - maps[1])
    return total / len(teacher)


def similarity_preserving(teacher, student):
    """Tung 2019, equations 1 to 4."""
    matrices = []
    for f in (teacher, student):
        rows = f.reshape(len(f), -1)
        g = rows @ rows.T
        matrices.append(g / np.linalg.norm(g, axis=1, keepdims=True))
    difference = matrices[0] - matrices[1]
    return np.linalg.norm(difference, "fro") ** 2 / len(teacher) ** 2


def relational_distance(teacher, student):
    """Park 2019, equations 4 to 6, averaged over ordered pairs."""
    pairs = list(itertools.permutations(range(len(teacher)), 2))
    seen = []
    for f in (teacher, student):
        rows = f.reshape(len(f), -1)
        lengths = np.array([np.linalg.norm(rows[i] - rows[j]) for i, j in pairs])
        seen.append(lengths / lengths.mean())
    return np.mean([_huber(d) for d in seen[0] - seen[1]])


def relational_angle(teacher, student):
    """Park 2019, equations 7 to 9, averaged over ordered triples."""
    seen = []
    for f in (teacher, student):
        rows = f.reshape(len(f), -1)
        angles = []
        for i, j, k in itertools.permutations(range(len(f)), 3):
            a, b = rows[i] - rows[j], rows[k] - rows[j]
            angles.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        seen.append(np.array(angles))
    return np.mean([_huber(d) for d in seen[0] - seen[1]])


def correlation(teacher, student, gamma=0.4, order=2):
    """Peng 2019, equations 6 and 9: a Gaussian kernel up to its second power."""
    count = len(teacher)
    total = 0.0
    for i, j in itertools.product(range(count), repeat=2):
        values = []
        for f in (teacher, student):
            x, y = (f[k].ravel() / np.linalg.norm(f[k]) for k in (i, j))
            powers = range(order + 1)
            series = [
                (2 * gamma) ** p / math.factorial(p) * (x @ y) ** p for p in powers
            ]
            values.append(math.exp(-2 * gamma) * sum(series))
        total += (values[0] - values[1]) ** 2
    return total / count**2


def correlation_third(teacher, student):
    """Peng 2019, with another kernel and one power more."""
    return correlation(teacher, student, gamma=0.7, order=3)


def probabilistic(teacher, student):
    """Passalis 2018, equations 4 to 8, mean of the samples."""
    count = len(teacher)
    matrices = []
    for f in (teacher, student):
        rows = f.reshape(count, -1)
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        kernel = (rows @ rows.T + 1) / 2
        np.fill_diagonal(kernel, 0.0)
        matrices.append(kernel / kernel.sum(axis=1, keepdims=True))
    return rel_entr(*matrices).sum() / count


def _huber(difference):
    size = abs(difference)
    return size**2 / 2 if size <= 1 else size - 0.5
