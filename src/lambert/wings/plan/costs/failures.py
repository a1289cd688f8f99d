"""The cost of failures in closed form: the best interval between checkpoints, and the share of useful time.

Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006, equations 20 and 37.
Failures are independent, and the time to the next one is exponential.
"""

from math import exp, inf, sqrt


def daly(mtbf: float, cost: float) -> float:
    """Returns Daly's interval between checkpoints, in seconds.

    Args:
        mtbf: Mean seconds between two failures of the group.
        cost: Seconds of training that a checkpoint takes.
    """
    if cost >= 2 * mtbf:
        return mtbf
    share = cost / (2 * mtbf)
    return sqrt(2 * cost * mtbf) * (1 + sqrt(share) / 3 + share / 9) - cost


def useful_share(mtbf: float, interval: float, cost: float, restart: float) -> float:
    """Returns the share of the time of a long run that is useful training.

    Args:
        mtbf: Mean seconds between two failures of the group; inf: none.
        interval: Seconds of training between two checkpoints.
        cost: Seconds of training that a checkpoint takes.
        restart: Seconds from a failure until training continues from the last checkpoint.
    """
    if mtbf == inf:
        return interval / (interval + cost)
    exponent = (interval + cost) / mtbf
    if exponent > 500:
        return 0.0
    return interval / (mtbf * exp(restart / mtbf) * (exp(exponent) - 1))


def group_mtbf(mtbf: float, nodes: int) -> float:
    """Returns the mean time between failures of a group of nodes, each of which fails once in `mtbf`."""
    return mtbf / nodes
