"""How far the result of a chain of rounded products may be from the exact one, by the arithmetic alone."""

import math

# An earlier step reaches a result through a forget gate, which lets half of it pass where its bias is 0 and three
# quarters where it is 1: errors of so many steps add up.
_STEPS = 4


def allowed(precision: str, roundings: int, terms: int, cuts: int = 0) -> float:
    """The root mean square of the error of a result, as a share of that of the result.

    An error of rounding spreads evenly over one step of the number type, so its root mean square is the largest one
    divided by the square root of 3. Those of a sum's terms have no common sign, as the terms have none: they are the
    same share of the sum. Nor have those of one layer and the next, or of one step and the next, so their squares add
    up; activations have slopes up to 1 and make none larger.

    A number that is cut off, toward zero, rather than rounded is on average half a step too small besides. These errors
    have a common sign, so they add up themselves over layers and steps, not their squares.

    Args:
        precision: "float32", "bfloat16", "int8" or "int4", of the factors of products.
        roundings: How often a number is rounded on its way through the layers, within one step: twice for a product,
            whose factors both are. For float32 the sums.
        terms: The most numbers in one sum.
        cuts: How many of those roundings, one after the other, cut off. Two terms of a sum that both do are one: the
            sum is as much too small as they are.
    """
    largest = {
        # A sum of n numbers is rounded n times, each time by up to 2^-24 of what it is then.
        "float32": math.sqrt(terms) * 2**-24,
        # 8 bits.
        "bfloat16": 2**-9,
        # 127 steps reach the largest of a column or row, which for n normal numbers is below sqrt(2 ln n) of them.
        "int8": math.sqrt(2 * math.log(terms)) / 254,
        # 8 steps reach the largest of up to 32 weights. The inputs are rounded as in int8, which is far less.
        "int4": math.sqrt(2 * math.log(min(terms, 32))) / 16,
    }
    return math.sqrt(roundings * _STEPS / 3 + (cuts * _STEPS) ** 2) * largest[precision]
