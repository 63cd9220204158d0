# SPDX-License-Identifier: PostgreSQL
"""The generator against RFC 8439, the samplers against their distributions.

The samplers' keys are fixed, so that nothing here can fail by chance; the
thresholds are those that a fresh key would need.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special, stats

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


def ziggurat() -> npt.NDArray[np.float64]:
    """The edges in the C source."""
    text = (Path(__file__).resolve().parents[2] / "udas" / "kernels" / "ziggurat.h").read_text()
    body = text[text.index("= {") : text.index("};")]
    return np.array([float(number) for number in re.findall(r"\d+\.\d+", body)])


def test_ziggurat_strips_have_equal_area() -> None:
    edges = ziggurat()
    assert edges.shape == (257,)
    assert edges[-1] == 0.0
    assert np.all(np.diff(edges) < 0.0)
    heights = np.exp(-(edges**2) / 2)
    area = edges[1] * heights[1] + math.sqrt(math.pi / 2) * special.erfc(edges[1] / math.sqrt(2))
    np.testing.assert_allclose(edges[0] * heights[1], area, rtol=1e-14)
    np.testing.assert_allclose(edges[1:-1] * np.diff(heights[1:]), area, rtol=1e-13)


def test_fresh_keys_differ() -> None:
    assert Noise().uniform() != Noise().uniform()
    assert Noise(KEY).uniform() == Noise(KEY).uniform()
    with pytest.raises(ValueError, match="32 bytes"):
        Noise(b"short")


def ks(sample: npt.ArrayLike, distribution: str, *arguments: float) -> float:
    return float(stats.kstest(sample, distribution, args=arguments).pvalue)


@pytest.mark.statistical
def test_uniform() -> None:
    noise = Noise(KEY)
    sample = np.array([noise.uniform() for _ in range(20_000)])
    assert 0.0 < sample.min() <= sample.max() < 1.0
    assert ks(sample, "uniform") >= SMALLEST_P
    assert np.all(np.mod(sample * 2.0**53, 2) == 1)


@pytest.mark.statistical
@pytest.mark.parametrize("stddev", [1e-9, 1.0, 40.0])
def test_gaussian(stddev: float) -> None:
    sample = Noise(KEY).gaussian(200_001, stddev)
    assert ks(sample, "norm", 0.0, stddev) >= SMALLEST_P
    # Both outputs of a pair, and whether they hang together.
    first, second = sample[:-1:2], sample[1::2]
    assert ks(first, "norm", 0.0, stddev) >= SMALLEST_P
    assert ks(second, "norm", 0.0, stddev) >= SMALLEST_P
    assert ks((first + second) / math.sqrt(2), "norm", 0.0, stddev) >= SMALLEST_P
    assert ks((first**2 + second**2) / stddev**2, "chi2", 2) >= SMALLEST_P


@pytest.mark.statistical
def test_gaussian_in_fine_bins() -> None:
    """Within and between the strips of the ziggurat, on both sides, and beyond its last edge."""
    sample = Noise(KEY).gaussian(10_000_000, 1.0)
    inner = np.linspace(-3.6, 3.6, 2001)
    edges = np.concatenate([[-np.inf, -4.5, -4.2, -3.9], inner, [3.9, 4.2, 4.5, np.inf]])
    found = np.histogram(sample, edges)[0]
    expected = sample.size * np.diff(stats.norm.cdf(edges))
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue >= SMALLEST_P
    tail = ziggurat()[1]
    beyond = np.abs(sample[np.abs(sample) > tail])
    assert stats.kstest(
        2.0 * stats.norm.sf(beyond), "uniform", args=(0.0, 2.0 * stats.norm.sf(tail))
    ).pvalue >= (SMALLEST_P)
    assert stats.binomtest(int(np.sum(sample > 0.0)), sample.size).pvalue >= SMALLEST_P


@pytest.mark.statistical
def test_gaussian_tail() -> None:
    """Counts beyond 2, 3, 4 standard deviations."""
    sample = np.abs(Noise(KEY).gaussian(1_000_000, 1.0))
    for bound in (2.0, 3.0, 4.0):
        found = int(np.sum(sample > bound))
        assert stats.binomtest(found, sample.size, 2 * stats.norm.sf(bound)).pvalue >= SMALLEST_P


POSITIVE, NEGATIVE = 2**63 - 2**8, 2**63
"""Words of the lowest strip, as far out as it goes: what follows is drawn from the tail."""


def tail(n: int, zeros: int, kept_zeros: int) -> npt.NDArray[np.float64]:
    """Numbers beyond the last edge, of alternate signs.

    Each begins with a try at which the two words of its exponentials have so many leading zeros: an
    exponential from such a word lies beyond so many times ln 2.
    """
    rng = ffi.new("DpmlRng *")
    lib.dpml_rng_start(rng, KEY)
    words, out = rng.words, np.empty(n)
    first = ffi.cast("double *", out.ctypes.data)
    for i in range(n):
        if rng.used > 61:
            rng.used = 64
            lib.dpml_rng_word(rng)
        at = rng.used
        words[at] = NEGATIVE if i % 2 else POSITIVE
        words[at + 1] >>= zeros
        words[at + 2] >>= kept_zeros
        lib.dpml_noise_gaussian(rng, 1, 1.0, first + i)
    return out


@pytest.mark.statistical
@pytest.mark.parametrize(("zeros", "least"), [(0, 3.65), (10, 5.55), (20, 7.44), (30, 9.34)])
def test_gaussian_beyond_the_last_edge(zeros: int, least: float) -> None:
    """500,000 numbers of the tail alone; by their first words also those of up to 9.4 standard deviations.

    An exponential has no memory: beyond `edge` the law is the tail's, whichever try is kept.
    """
    n, r, log_sf = 500_000, float(ziggurat()[1]), stats.norm.logsf
    farther = zeros * math.log(2.0) / r
    edge = r + farther
    assert edge > least
    kept_zeros = math.floor(0.5 * farther**2 / math.log(2.0))
    found = tail(n, zeros, kept_zeros)
    np.testing.assert_array_equal(found > 0.0, np.arange(n) % 2 == 0)
    # Of first tries at r + y, 2^kept_zeros exp(-y^2/2) are kept; the others are followed by ordinary ones.
    log_mass = 0.5 * r * r + math.log(r * math.sqrt(2.0 * math.pi)) + log_sf(edge)
    kept = 2.0 ** (zeros + kept_zeros) * math.exp(log_mass)
    kept += (1.0 - kept) * math.exp(log_sf(edge) - log_sf(r))
    beyond = np.abs(found)[np.abs(found) > edge]
    assert stats.binomtest(beyond.size, n, min(kept, 1.0)).pvalue >= SMALLEST_P
    share = np.exp(log_sf(beyond) - log_sf(edge))
    assert ks(share, "uniform") >= SMALLEST_P
    assert stats.chisquare(np.histogram(share, 50, (0.0, 1.0))[0]).pvalue >= SMALLEST_P


@pytest.mark.statistical
def test_consecutive_numbers_are_independent() -> None:
    sample = Noise(KEY).gaussian(1_000_000, 1.0)
    for lag in (1, 2, 8, 63, 64, 65):
        assert stats.pearsonr(sample[:-lag], sample[lag:]).pvalue >= SMALLEST_P
        assert stats.pearsonr(sample[:-lag] ** 2, sample[lag:] ** 2).pvalue >= SMALLEST_P


def test_how_a_vector_is_cut_does_not_matter() -> None:
    whole = Noise(KEY).gaussian(1000, 2.0)
    noise = Noise(KEY)
    parts = [noise.gaussian(n, 2.0) for n in (1, 63, 64, 65, 0, 200, 607)]
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
@pytest.mark.parametrize("shape", [1.0, 1.5, 10.0, 1000.0])
def test_gamma(shape: float) -> None:
    noise = Noise(KEY)
    sample = [noise.gamma(shape) for _ in range(50_000)]
    assert ks(sample, "gamma", shape) >= SMALLEST_P


@pytest.mark.statistical
@pytest.mark.parametrize("n", [1, 2, 3, 50])
def test_knorm_radius_and_direction(n: int) -> None:
    """Radius Gamma(n, scale); direction on the sphere: a unit vector's coordinate squared is Beta."""
    scale = 2.5
    noise = Noise(KEY)
    sample = np.array([noise.knorm(n, scale) for _ in range(20_000)])
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
    assert np.all(noise.gaussian(7, 0.0) == 0.0)
    with pytest.raises(ValueError, match="shape"):
        noise.gamma(0.5)
