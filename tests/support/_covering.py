"""Covering arrays: few cases in which every two values that can meet do meet. A case is a dict; None: the key has no effect."""

import itertools
import random


def pairs_of(case):
    return set(itertools.combinations([(k, v) for k, v in case.items() if v is not None], 2))


def cover(cases, cost=lambda case: 0):
    """Few of the cases, with all pairs that are in any: always one of most new pairs, and of these of the least cost."""
    cases = random.Random(1).sample(cases, len(cases))  # equal ones should differ in what is covered already
    bits = {pair: 1 << i for i, pair in enumerate(sorted(set().union(*map(pairs_of, cases)), key=str))}
    masks = [sum(bits[pair] for pair in pairs_of(case)) for case in cases]
    left, chosen = (1 << len(bits)) - 1, []
    while left:
        best = max(range(len(cases)), key=lambda i: (bin(masks[i] & left).count("1"), -cost(cases[i]), -i))
        left &= ~masks[best]
        chosen.append(cases[best])
    return chosen
