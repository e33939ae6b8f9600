"""The error that rounding alone may cause in the result of a chain of products."""

import math

# An earlier step reaches a result through forget gates, which pass half of it where their bias is 0 and three
# quarters where it is 1: the errors of about this many steps add up.
_STEPS = 4


def allowed(precision: str, roundings: int, terms: int, cuts: int = 0) -> float:
    """The root mean square error of a result, relative to the root mean square of the result.

    A rounding error is uniform over one step of the number type, so its root mean square is the largest error divided
    by the square root of 3. The terms of a sum have no common sign, so their errors have none either, and the relative
    error of the sum is that of its terms. The errors of successive layers and steps have no common sign either, so
    their squares add up; activations have slopes up to 1 and do not enlarge errors.

    A number that is truncated toward zero rather than rounded is on average half a step too small as well. These errors
    have a common sign, so the errors themselves add up over layers and steps, not their squares.

    Args:
        precision: "float32", "bfloat16", "int8" or "int4", of the factors of products.
        roundings: The number of roundings on the way through the layers within one step: two for a product, whose
            factors are both rounded. For float32 the number of sums.
        terms: The most numbers in one sum.
        cuts: The number of those roundings, one after the other, that truncate. Two truncated terms of one sum count
            once: the sum is relatively as much too small as each of them.
    """
    largest = {
        # A sum of n numbers is rounded n times, each time by up to 2^-24 of the partial sum.
        "float32": math.sqrt(terms) * 2**-24,
        # 8 bits.
        "bfloat16": 2**-9,
        # 127 steps reach the largest number of a column or row, below sqrt(2 ln n) deviations for n normal numbers.
        "int8": math.sqrt(2 * math.log(terms)) / 254,
        # 8 steps reach the largest of up to 32 weights. The inputs are rounded as in int8, with a far smaller error.
        "int4": math.sqrt(2 * math.log(min(terms, 32))) / 16,
    }
    return math.sqrt(roundings * _STEPS / 3 + (cuts * _STEPS) ** 2) * largest[precision]
