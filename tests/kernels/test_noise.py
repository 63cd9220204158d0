# SPDX-License-Identifier: PostgreSQL
"""The generator against RFC 8439, the samplers against their distributions.

The samplers' keys are fixed, so that nothing here can fail by chance; the
thresholds are those that a fresh key would need.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from mpmath import mp, mpf
from scipy import stats

from helpers import ziggurat
from pg_dpml._kernels import ffi, lib
from pg_dpml.kernels import Noise, noise_grid

SMALLEST_P = 1e-6
KEY = bytes(range(100, 132))


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    out = ffi.new("uint32_t[16]")
    words = np.frombuffer(key, "<u4").tolist(), np.frombuffer(nonce, "<u4").tolist()
    lib.dpml_chacha20_block(words[0], counter, words[1], out)
    return np.array(list(out), dtype="<u4").tobytes()


@pytest.mark.parametrize(
    ("key", "counter", "nonce", "expected"),
    [
        # RFC 8439, section 2.3.2
        (
            bytes(range(32)),
            1,
            "000000090000004a00000000",
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
        ),
        # RFC 8439, appendix A.1, vectors 1 to 5
        (
            bytes(32),
            0,
            "000000000000000000000000",
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        ),
        (
            bytes(32),
            1,
            "000000000000000000000000",
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
        ),
        (
            bytes(31) + b"\x01",
            1,
            "000000000000000000000000",
            "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
            "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
        ),
        (
            b"\x00\xff" + bytes(30),
            2,
            "000000000000000000000000",
            "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
            "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
        ),
        (
            bytes(32),
            0,
            "000000000000000000000002",
            "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
            "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
        ),
    ],
)
def test_rfc_8439_vectors(key: bytes, counter: int, nonce: str, expected: str) -> None:
    assert chacha20_block(key, counter, bytes.fromhex(nonce)).hex() == expected


def eight_blocks(first: int) -> list[int]:
    """Blocks first .. first + 7 side by side; the upper half of a number is the first word of the nonce."""
    numbers = range(first, first + 8)
    blocks = [chacha20_block(KEY, n % 2**32, (n >> 32).to_bytes(4, "little") + bytes(8)) for n in numbers]
    words = np.array([np.frombuffer(block, "<u4") for block in blocks]).T
    return list(np.ascontiguousarray(words).view("<u8").reshape(-1).tolist())


def test_words_are_the_key_stream() -> None:
    rng = ffi.new("DpmlRng *")
    lib.dpml_rng_start(rng, KEY)
    expected = eight_blocks(0) + eight_blocks(8)
    assert [lib.dpml_rng_word(rng) for _ in range(128)] == expected
    rng.counter = 6 * 2**32 - 8
    expected = eight_blocks(6 * 2**32 - 8) + eight_blocks(6 * 2**32)
    assert [lib.dpml_rng_word(rng) for _ in range(128)] == expected
    assert rng.counter == 6 * 2**32 + 8


def test_fresh_keys_differ() -> None:
    assert Noise().gaussian(1, 2.0**40) != Noise().gaussian(1, 2.0**40)
    assert Noise(KEY).gaussian(1, 2.0**40) == Noise(KEY).gaussian(1, 2.0**40)
    with pytest.raises(ValueError, match="32 bytes"):
        Noise(b"short")


def standard_normals(n: int) -> npt.NDArray[np.float64]:
    return Noise(KEY).gaussian(n, 2.0**40) * 2.0**-40


def ks(sample: npt.ArrayLike, distribution: str, *arguments: float) -> float:
    return float(stats.kstest(sample, getattr(stats, distribution)(*arguments).cdf).pvalue)


@pytest.mark.statistical
@pytest.mark.parametrize("stddev", [2.0**20, 1e9, 2.0**45])
def test_gaussian(stddev: float) -> None:
    sample = Noise(KEY).gaussian(200_001, stddev)
    np.testing.assert_array_equal(sample, np.rint(sample))
    assert ks(sample, "norm", 0.0, stddev) >= SMALLEST_P
    # Neighbours, and whether they hang together.
    first, second = sample[:-1:2], sample[1::2]
    assert ks(first, "norm", 0.0, stddev) >= SMALLEST_P
    assert ks(second, "norm", 0.0, stddev) >= SMALLEST_P
    assert ks((first + second) / math.sqrt(2), "norm", 0.0, stddev) >= SMALLEST_P
    assert ks((first**2 + second**2) / stddev**2, "chi2", 2) >= SMALLEST_P


@pytest.mark.statistical
def test_gaussian_in_fine_bins() -> None:
    """Within and between the strips of the ziggurat, on both sides, and beyond its last edge."""
    sample = standard_normals(10_000_000)
    inner = np.linspace(-3.6, 3.6, 2001)
    edges = np.concatenate([[-np.inf, -4.5, -4.2, -3.9], inner, [3.9, 4.2, 4.5, np.inf]])
    found = np.histogram(sample, edges)[0]
    expected = sample.size * np.diff(stats.norm.cdf(edges))
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue >= SMALLEST_P
    tail = ziggurat.EDGES[1] * 2.0**-61
    beyond = np.abs(sample[np.abs(sample) > tail])
    assert ks(2.0 * stats.norm.sf(beyond), "uniform", 0.0, 2.0 * stats.norm.sf(tail)) >= SMALLEST_P
    assert stats.binomtest(int(np.sum(sample > 0.0)), sample.size).pvalue >= SMALLEST_P


@pytest.mark.statistical
def test_gaussian_tail() -> None:
    """Counts beyond 2, 3, 4 standard deviations."""
    sample = np.abs(standard_normals(1_000_000))
    for bound in (2.0, 3.0, 4.0):
        found = int(np.sum(sample > bound))
        assert stats.binomtest(found, sample.size, 2 * stats.norm.sf(bound)).pvalue >= SMALLEST_P


def test_tables() -> None:
    """Strips of equal area, and what follows from their edges, to the last digit."""
    edges = [mpf(edge) / 2**61 for edge in ziggurat.EDGES]
    assert [len(table) for table in (edges, ziggurat.INSIDE, ziggurat.RISE, ziggurat.TAIL)] == [
        257,
        256,
        256,
        64,
    ]
    heights = [mp.exp(-(edge**2) / 2) for edge in edges]
    area = edges[1] * heights[1] + mp.sqrt(mp.pi / 2) * mp.erfc(edges[1] / mp.sqrt(2))
    areas = [edges[0] * heights[1]] + [edges[i] * (heights[i + 1] - heights[i]) for i in range(1, 256)]
    assert max(abs(found / area - 1) for found in areas) < mpf(2) ** -53
    assert edges[256] == 0
    for i in range(256):
        assert ziggurat.INSIDE[i] == ziggurat.PLACES * ziggurat.EDGES[i + 1] // ziggurat.EDGES[i]
    assert ziggurat.RISE[1:] == [float(heights[i + 1] / heights[i] - 1) for i in range(1, 256)]
    fall = [mp.exp((edges[1] ** 2 - (edges[1] + mpf(j) / 4) ** 2) / 2) for j in range(64)]
    assert [float(mpf(2) ** j * fall[j]) for j in range(64)] == ziggurat.TAIL


def test_shares_are_right_to_50_bits() -> None:
    """What the code keeps of a place of a strip, and of a piece of the tail."""
    rng = np.random.default_rng(1)
    for strip in (*range(1, 256, 5), 254, 255):
        inside = ziggurat.INSIDE[strip]
        edge = mpf(ziggurat.EDGES[strip]) / 2**61
        for number in (
            inside + 1,
            ziggurat.PLACES - 1,
            *rng.integers(inside + 1, ziggurat.PLACES, 20).tolist(),
        ):
            expected = ziggurat.share_under_curve(strip, (number + mpf(0.5)) * edge / ziggurat.PLACES)
            found = lib.dpml_normal_under_curve(strip, number)
            # of a share the whole strip's height, which is at most that of the curve
            assert abs(found - expected) <= mpf(2) ** -50
    edge = mpf(ziggurat.EDGES[1]) / 2**61
    for piece in range(24):
        for number in (0, ziggurat.PLACES - 1, *rng.integers(0, ziggurat.PLACES, 20).tolist()):
            beyond = (number + mpf(0.5)) / (4 * ziggurat.PLACES)
            expected = mp.exp(-beyond * (edge + mpf(piece) / 4) - beyond**2 / 2)
            assert abs(lib.dpml_normal_in_tail(piece, number) / expected - 1) <= mpf(2) ** -50


def drawn(words: list[int], stddev: float) -> tuple[int, int]:
    """The number that these words of the key stream stand for, and how many of them it took."""
    rng, out = ffi.new("DpmlRng *"), ffi.new("double *")
    for i, word in enumerate(words):
        rng.words[i] = word
    lib.dpml_noise_gaussian(rng, 1, stddev, out)
    return int(out[0]), rng.used


def word_of(strip: int, number: int) -> int:
    return (number << 8 | strip) % 2**64


@pytest.mark.parametrize("stddev", [2.0**20, 1.37 * 2.0**21, 2.0**33, 1.9 * 2.0**40, 2.0**45, 0.7, 5.0])
def test_a_place_on_two_points_is_divided_where_they_meet(stddev: float) -> None:
    """The code's own words, on either side of a point's border: exact to 2^-64 of a place."""
    steps = ziggurat.Steps(stddev)
    rng = np.random.default_rng(2)
    for strip in (0, 1, 2, 40, 200, 254):
        width = steps.width(ziggurat.EDGES[strip])
        farthest = ziggurat.INSIDE[strip] * ziggurat.EDGES[strip] // ziggurat.PLACES * 2.0**-61 * stddev
        for point in {0, 1, -1, *(int(share * farthest) for share in rng.uniform(-0.999, 0.999, 12))}:
            number, digits = divmod(steps.first_part(point, 0, width), 2**64)
            if not -ziggurat.INSIDE[strip] < number < ziggurat.INSIDE[strip] - 1:
                continue  # a grid so coarse that the next border lies outside
            if digits:
                assert drawn([word_of(strip, number), digits], stddev) == (point, 2)
                assert drawn([word_of(strip, number), digits - 1], stddev) == (point - 1, 2)
            assert drawn([word_of(strip, number + 1), 0], stddev)[0] == steps.point(number + 1, 0, 0, width)
            assert drawn([word_of(strip, number - 1), 2**64 - 1], stddev)[0] == steps.point(
                number - 1, 2**64 - 1, 0, width
            )


@pytest.mark.parametrize("stddev", [2.0**20, 1.9 * 2.0**40, 2.0**45])
@pytest.mark.parametrize("negative", [False, True])
def test_a_place_of_the_tail_is_divided_where_points_meet(stddev: float, negative: bool) -> None:
    steps = ziggurat.Steps(stddev)
    begin, width = ziggurat.INSIDE[0] * steps.width(ziggurat.EDGES[0]), steps.width(2**59)
    for x in (3.66, 3.9, 3.91, 5.0, 9.4):
        point = int(x * stddev)
        number, digits = divmod(steps.first_part(point, begin, width), 2**64)
        piece, place = divmod(number, ziggurat.PLACES)
        beyond = [NEGATIVE if negative else POSITIVE, 2 ** (63 - piece), place << 9, 0, 0]
        if piece == 0:
            del beyond[3]  # always kept: no coin
        if negative:  # mirrored, and its parts with it
            assert drawn([*beyond, 2**64 - digits - 1], stddev) == (-point, len(beyond) + 1)
            assert drawn([*beyond, 2**64 - digits + 1], stddev) == (1 - point, len(beyond) + 1)
        else:
            assert drawn([*beyond, digits], stddev) == (point, len(beyond) + 1)
            assert drawn([*beyond, digits - 1], stddev) == (point - 1, len(beyond) + 1)


def test_coins_are_exact() -> None:
    """A word is compared with the probability's first 64 digits, the next with the next, to the last."""
    for probability in (0.3, 0.5, 2.0**-64, 1.0 - 2.0**-53, 1e-30, 2.0**-1074):
        digits, left = [], Fraction(probability)
        while left:
            left *= 2**64
            digits.append(int(left))
            left -= int(left)
        for i, digit in enumerate(digits):
            assert coin(probability, [*digits[:i], digit + 1]) == (0, i + 1)
            if digit:
                assert coin(probability, [*digits[:i], digit - 1]) == (1, i + 1)
        assert coin(probability, digits) == (0, len(digits))
    assert coin(1.0, []) == (1, 0)
    assert coin(0.0, []) == (0, 0)


def coin(probability: float, words: list[int]) -> tuple[int, int]:
    """What the coin shows for these words, and how many it took."""
    rng = ffi.new("DpmlRng *")
    for i, word in enumerate(words):
        rng.words[i] = word
    return lib.dpml_rng_coin(rng, probability), rng.used


def test_normals_near_0_have_as_many_digits_as_others() -> None:
    """They decide how small the noise of a K-norm release can be."""
    rng, out = ffi.new("DpmlRng *"), ffi.new("double *")
    for number, digits in ((2**50 - 1, 7), (1, 2**63), (0, 2**60), (0, 2**40)):
        for sign in (1, -1):
            words = [word_of(5, number if sign > 0 else ~number), digits, 2**63]
            for i, word in enumerate(words):
                rng.words[i] = word
            rng.used = 0
            lib.dpml_rng_normal(rng, 1, out)
            parts = Fraction(number * 2**64 + digits) + (Fraction(1, 2) if digits >= 2**50 or number else 0)
            expected = parts * ziggurat.EDGES[5] / 2**180
            assert abs(sign * Fraction(out[0]) / expected - 1) <= Fraction(
                1, 2**39 if digits == 2**40 else 2**50
            )
            assert rng.used == (3 if digits == 2**40 and not number else 2)


POSITIVE, NEGATIVE = 2**63 - 2**8, 2**63
"""Words of the lowest strip, as far out as it goes: what follows is drawn from the tail."""


def tail(n: int, zeros: int) -> npt.NDArray[np.float64]:
    """Numbers beyond the last edge, of alternate signs; each begins with a try in one piece."""
    rng = ffi.new("DpmlRng *")
    lib.dpml_rng_start(rng, KEY)
    words, out = rng.words, np.empty(n)
    first = ffi.cast("double *", out.ctypes.data)
    for i in range(n):
        if rng.used > 60:
            rng.used = 64
            lib.dpml_rng_word(rng)
        at = rng.used
        words[at] = NEGATIVE if i % 2 else POSITIVE
        words[at + 1] = words[at + 1] >> zeros | 2 ** (63 - zeros)
        if zeros > 0:
            words[at + 3] = 0  # the piece is kept
        lib.dpml_noise_gaussian(rng, 1, 2.0**40, first + i)
    return out * 2.0**-40


@pytest.mark.statistical
@pytest.mark.parametrize("piece", [0, 1, 5, 12, 23])
def test_gaussian_beyond_the_last_edge(piece: int) -> None:
    """200,000 numbers of the tail alone, up to 9.6 standard deviations."""
    edge = ziggurat.EDGES[1] * 2.0**-61
    low, high = edge + 0.25 * piece, edge + 0.25 * (piece + 1)
    found = tail(200_000, piece)
    np.testing.assert_array_equal(found > 0.0, np.arange(found.size) % 2 == 0)
    size = np.abs(found)
    assert size.min() >= edge
    log_sf = stats.norm.logsf
    inside = size[(size >= low) & (size < high)]
    assert inside.size > 0.3 * found.size
    share = np.expm1(log_sf(inside) - log_sf(low)) / np.expm1(log_sf(high) - log_sf(low))
    assert ks(share, "uniform") >= SMALLEST_P
    assert stats.chisquare(np.histogram(share, 50, (0.0, 1.0))[0]).pvalue >= SMALLEST_P
    # The others had another try, from the tail as a whole.
    others = size[(size < low) | (size >= high)]
    if others.size:
        mass = stats.norm.sf(edge) - (stats.norm.sf(low) - stats.norm.sf(high))
        beyond = int(np.sum(others >= max(high, 4.0)))
        assert stats.binomtest(beyond, others.size, stats.norm.sf(max(high, 4.0)) / mass).pvalue >= SMALLEST_P


@pytest.mark.statistical
def test_consecutive_numbers_are_independent() -> None:
    sample = standard_normals(1_000_000)
    for lag in (1, 2, 8, 63, 64, 65):
        assert stats.pearsonr(sample[:-lag], sample[lag:]).pvalue >= SMALLEST_P
        assert stats.pearsonr(sample[:-lag] ** 2, sample[lag:] ** 2).pvalue >= SMALLEST_P


def test_how_a_vector_is_cut_does_not_matter() -> None:
    whole = Noise(KEY).gaussian(1000, 2.0**45)
    noise = Noise(KEY)
    parts = [noise.gaussian(n, 2.0**45) for n in (1, 63, 64, 65, 0, 200, 607)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.statistical
@pytest.mark.parametrize("q", [1.0, 0.9, 0.5, 0.1, 1e-3, 1e-7])
def test_coin_misses(q: float) -> None:
    noise = Noise(KEY)
    sample = np.array([noise.misses(q) for _ in range(50_000)])
    if q == 1.0:
        assert not sample.any()
        return
    most = int(stats.geom.ppf(1 - 1e-3, q))
    edges = np.unique(np.linspace(0, most, min(most, 50) + 1).astype(int))
    found = np.array([*np.histogram(sample, [*edges[:-1], edges[-1] + 0.5])[0], np.sum(sample > edges[-1])])
    upper = np.array([*(edges[1:-1] - 1), edges[-1]])
    cumulative = stats.geom.cdf(upper + 1, q)
    expected = np.diff([0.0, *cumulative, 1.0]) * sample.size
    assert stats.chisquare(found, expected).pvalue >= SMALLEST_P


def misses_of_words(probability: float, *words: int) -> int:
    """Misses that these words of the key stream stand for."""
    noise = Noise(KEY)
    for i, word in enumerate(words):
        noise._rng.words[i] = word
    noise._rng.used = 0
    found = noise.misses(probability)
    assert noise._rng.used == len(words)
    return found


def words_of_at_least(misses: int, probability: float, *before: int) -> int:
    """How many words, after others, stand for at least so many misses; all those that go on do."""
    low, high = 2**56, 2**64  # misses fall with the word
    while low < high:
        middle = (low + high) // 2
        if misses_of_words(probability, *before, middle) >= misses:
            low = middle + 1
        else:
            high = middle
    return low


@pytest.mark.parametrize("turns", [0, 1, 3])
@pytest.mark.parametrize("q", [0.3, 1e-3, 50 / 498010, 1e-7])
def test_every_coin_has_its_probability(q: float, turns: int) -> None:
    """Counted in words: a hit after m misses is as likely as any other, however large m is."""
    n = math.ceil(1.0 / q)
    first = math.ceil(8.0 * turns * math.log(2.0) / -math.log1p(-q))
    for m in (first + np.unique(np.geomspace(1, max(5.5 / q - 8, 2), 8).astype(int))).tolist():
        at, beyond = (words_of_at_least(i, q, *[2**56 - 1] * turns) for i in (m, m + 1))
        assert (at - beyond) / at == pytest.approx(q, rel=2.0**-50 * max(n, m + 8) + 2.0**-56 / q)


def test_long_runs_of_misses_go_on_with_a_fresh_word() -> None:
    rate = -math.log1p(-1e-9)
    assert misses_of_words(1e-9, 2**63) == pytest.approx(math.log(2.0) / rate)
    for turns in (1, 2, 10):
        expected = (8.0 * turns + 1.0) * math.log(2.0) / rate
        assert misses_of_words(1e-9, *[0] * turns, 2**63) == pytest.approx(expected)


def test_coins_that_never_hit() -> None:
    """The smallest probability gives the cap, not an overflow."""
    assert Noise(KEY).misses(5e-324) == 2**62 - 1
    for q in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="probability"):
            Noise(KEY).misses(q)


def test_grid() -> None:
    for scale in (1.0, 0.75, 1e-9, 3e7):
        grid = noise_grid(scale)
        assert math.frexp(grid)[0] == 0.5
        assert grid <= scale * 2.0**-20 < 2.0 * grid


@pytest.mark.statistical
@pytest.mark.parametrize("n", [1, 2, 3, 50])
def test_knorm_radius_and_direction(n: int) -> None:
    """Radius Gamma(n, scale); direction on the sphere: a unit vector's coordinate squared is Beta."""
    scale = 2.5 * 2.0**30
    noise = Noise(KEY)
    sample = np.array([noise.knorm(n, scale) for _ in range(20_000)])
    np.testing.assert_array_equal(sample, np.rint(sample))
    radius = np.linalg.norm(sample, axis=1)
    assert ks(radius, "gamma", n, 0.0, scale) >= SMALLEST_P
    direction = sample / radius[:, None]
    if n == 1:
        assert stats.binomtest(int(np.sum(direction > 0)), 20_000).pvalue >= SMALLEST_P
        return
    for j in range(min(n, 3)):
        assert ks(direction[:, j] ** 2, "beta", 0.5, (n - 1) / 2) >= SMALLEST_P
        assert stats.binomtest(int(np.sum(direction[:, j] > 0)), 20_000).pvalue >= SMALLEST_P
    # A rotated axis is no different from a coordinate.
    diagonal = direction[:, :2].sum(axis=1) / math.sqrt(2)
    assert ks(diagonal**2, "beta", 0.5, (n - 1) / 2) >= SMALLEST_P
    # The radius knows nothing of the direction.
    assert stats.spearmanr(radius, direction[:, 0]).pvalue >= SMALLEST_P


def test_sizes() -> None:
    noise = Noise(KEY)
    assert noise.gaussian(0, 1.0).shape == noise.knorm(0, 1.0).shape == (0,)
    assert noise.gaussian(1, 1.0).shape == (1,)
    for none in (0.0, 5e-324, 1e-30, 2.0**-13):
        assert not noise.gaussian(7, none).any()
        assert not noise.knorm(7, none / 16.0).any()
    for wide in (2.0**45 * (1.0 + 2.0**-52), math.inf, math.nan, -1.0):
        with pytest.raises(ValueError, match="standard deviation must be in"):
            noise.gaussian(1, wide)
        with pytest.raises(ValueError, match="standard deviation must be in"):
            noise.knorm(3, wide / 2.0)


@pytest.mark.statistical
@pytest.mark.parametrize("stddev", [0.2, 0.5, 1.0, 3.7, 40.0])
def test_coarse_grids(stddev: float) -> None:
    """Noise of few steps is a normal, rounded."""
    sample = Noise(KEY).gaussian(300_000, stddev)
    points = np.arange(-math.ceil(4 * stddev), math.ceil(4 * stddev) + 1)
    edges = np.concatenate([[-np.inf], points[:-1] + 0.5, [np.inf]])
    found = np.histogram(sample, edges)[0]
    expected = np.diff(stats.norm.cdf(edges / stddev)) * sample.size
    kept = expected > 5
    assert not found[expected < 1e-9].any()
    assert (
        stats.chisquare(found[kept], expected[kept] * found[kept].sum() / expected[kept].sum()).pvalue
        >= SMALLEST_P
    )
