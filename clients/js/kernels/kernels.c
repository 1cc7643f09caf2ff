/* The arithmetic of a client, for wasm32: transforms modulo primes, products, draws, packed residues, the Fourier transform
 * of the canonical embedding, and the hashes and ciphers that browsers lack. docs/wire.md says what the numbers mean.
 *
 * A row is a polynomial modulo one prime: numbers of 32 bits for a short prime (below WORD_LIMIT, 2^30.2), else of 64.
 * Names end in _s for short rows and in _l for long ones. The caller manages the memory.
 *
 * Secret numbers: no branch and no address depends on one, and they are never divided (an engine's division may take longer
 * for some numbers). Reductions choose by masks or minima. What only sees public numbers is marked "public" and may branch.
 */

#include <stdint.h>
#ifdef __wasm_simd128__
#include <wasm_simd128.h>
#endif

typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

#define EXPORT(name) __attribute__((export_name(#name))) name

/* ------------------------------------------------------------------------- single numbers */

/* The upper word of a product. */
static inline u64 high(u64 a, u64 b) {
    u64 a0 = (u32)a, a1 = a >> 32, b0 = (u32)b, b1 = b >> 32;
    u64 low = a0 * b0, left = a1 * b0 + (low >> 32);
    /* Without this the compiler sees a product of 128 bits, and calls a function for it. */
    __asm__("" : "+r"(left));
    u64 right = a0 * b1 + (u32)left;
    return a1 * b1 + (left >> 32) + (right >> 32);
}

/* All bits if the highest one is set, else none. The compiler does not see what they are: it would make a selection of them,
 * and engines may make a branch of a selection. */
static inline u64 sign(u64 x) {
    __asm__("" : "+r"(x));
    u64 mask = (u64)((i64)x >> 63);
    __asm__("" : "+r"(mask));
    return mask;
}

static inline u32 sign_s(u32 x) {
    __asm__("" : "+r"(x));
    u32 mask = (u32)((int32_t)x >> 31);
    __asm__("" : "+r"(mask));
    return mask;
}

/* x - q where it is not negative, else x; for numbers below 2^63. */
static inline u64 less(u64 x, u64 q) {
    u64 rest = x - q;
    return rest + (q & sign(rest));
}

static inline u32 less_s(u32 x, u32 q) {
    u32 rest = x - q;
    return rest + (q & sign_s(rest));
}

/* w x modulo q, below 2q, where ratio = floor(2^64 w / q); for any x (Shoup). */
static inline u64 times_lazy(u64 x, u64 w, u64 ratio, u64 q) { return x * w - high(x, ratio) * q; }

static inline u64 times(u64 x, u64 w, u64 ratio, u64 q) { return less(times_lazy(x, w, ratio, q), q); }

/* The same with words of 32 bits. */
static inline u32 times_lazy_s(u32 x, u32 w, u32 ratio, u32 q) { return x * w - (u32)(((u64)x * ratio) >> 32) * q; }

static inline u32 times_s(u32 x, u32 w, u32 ratio, u32 q) { return less_s(times_lazy_s(x, w, ratio, q), q); }

/* x modulo q for any x, where ratio = floor(2^64 / q): the quotient is at most one too small. */
static inline u64 rest(u64 x, u64 ratio, u64 q) { return less(x - high(x, ratio) * q, q); }

/* floor(2^64 / q) for a q that is no power of two. Public. */
u64 EXPORT(reciprocal)(u64 q) { return ~(u64)0 / q; }

/* floor(2^64 w / q) for w < q < 2^63, bit by bit. */
static inline u64 ratio(u64 w, u64 q) {
    u64 found = 0;
    for (int i = 0; i < 64; i++) {
        w <<= 1;
        u64 smaller = sign(w - q);
        found = found << 1 | (1 + smaller);
        w -= q & ~smaller;
    }
    return found;
}


/* The same for words of 32 bits. */
static inline u32 ratio_s(u32 w, u32 q) {
    u32 found = 0;
    for (int i = 0; i < 32; i++) {
        w <<= 1;
        u32 smaller = sign_s(w - q);
        found = found << 1 | (1 + smaller);
        w -= q & ~smaller;
    }
    return found;
}

/* ------------------------------------------------------------------------- roots (public) */

static u64 power(u64 base, u64 exponent, u64 q) {
    u64 found = 1;
    for (; exponent; exponent >>= 1) {
        u64 by = ratio(base, q);
        if (exponent & 1) found = times(found, base, by, q);
        base = times(base, base, by, q);
    }
    return found;
}

static u32 reversed(u32 j, u32 bits) {
    u32 found = 0;
    for (u32 i = 0; i < bits; i++) found |= (j >> i & 1) << (bits - 1 - i);
    return found;
}

/* The smallest number of order 2n modulo q. */
u64 EXPORT(smallest_root)(u32 n, u64 q) {
    u64 root = 0;
    for (u64 base = 2;; base++) {
        root = power(base, (q - 1) / (2 * n), q);
        if (power(root, n, q) == q - 1) break;
    }
    u64 square = times(root, root, ratio(root, q), q), by = ratio(square, q), least = root, odd = root;
    for (u32 i = 1; i < n; i++) {
        odd = times(odd, square, by, q);
        if (odd < least) least = odd;
    }
    return least;
}

u64 EXPORT(inverse)(u64 x, u64 q) { return power(x, q - 2, q); }

/* The powers of a root in the order of transforms: number j is root^r(j), with its ratio beside it in the second half. */
void EXPORT(roots_l)(u64 *roots, u32 n, u32 bits, u64 root, u64 q) {
    u64 by = ratio(root, q), found = 1;
    for (u32 j = 0; j < n; j++) {
        u32 at = reversed(j, bits);
        roots[at] = found;
        roots[n + at] = ratio(found, q);
        found = times(found, root, by, q);
    }
}

void EXPORT(roots_s)(u32 *roots, u32 n, u32 bits, u32 root, u32 q) {
    u32 by = ratio_s(root, q), found = 1;
    for (u32 j = 0; j < n; j++) {
        u32 at = reversed(j, bits);
        roots[at] = found;
        roots[n + at] = ratio_s(found, q);
        found = times_s(found, root, by, q);
    }
}

/* ------------------------------------------------------------------------- transforms */

/* The values of a polynomial with these coefficients, in place; q < 2^61. Numbers stay below 4q until the end (Harvey). */
void EXPORT(forward_l)(u64 *x, const u64 *roots, u32 n, u64 q) {
    u64 twice = 2 * q;
    for (u32 count = 1, run = n / 2; run; count *= 2, run /= 2)
        for (u32 i = 0; i < count; i++) {
            u64 w = roots[count + i], ratio = roots[n + count + i], *a = x + 2 * i * run, *b = a + run;
            for (u32 j = 0; j < run; j++) {
                u64 u = less(a[j], twice), v = times_lazy(b[j], w, ratio, q);
                a[j] = u + v;
                b[j] = u - v + twice;
            }
        }
    for (u32 j = 0; j < n; j++) x[j] = less(less(x[j], twice), q);
}

/* The coefficients of a polynomial with these values, in place; `roots` are those of the inverse root, and `last` is 1/n. */
void EXPORT(backward_l)(u64 *x, const u64 *roots, u32 n, u64 last, u64 q) {
    u64 twice = 2 * q;
    for (u32 count = n / 2, run = 1; count; count /= 2, run *= 2)
        for (u32 i = 0; i < count; i++) {
            u64 w = roots[count + i], ratio = roots[n + count + i], *a = x + 2 * i * run, *b = a + run;
            for (u32 j = 0; j < run; j++) {
                u64 u = a[j], v = b[j];
                a[j] = less(u + v, twice);
                b[j] = times_lazy(u - v + twice, w, ratio, q);
            }
        }
    u64 by = ratio(last, q);
    for (u32 j = 0; j < n; j++) x[j] = times(x[j], last, by, q);
}

/* The same for short primes, q < 2^30.2: numbers below 2q fit twice into a word, those below 4q do too. */
#ifdef __wasm_simd128__
static inline v128_t times4(v128_t x, v128_t w, v128_t ratio, v128_t q) {
    v128_t low = wasm_u64x2_extmul_low_u32x4(x, ratio), up = wasm_u64x2_extmul_high_u32x4(x, ratio);
    v128_t quotient = wasm_i32x4_shuffle(low, up, 1, 3, 5, 7);
    return wasm_i32x4_sub(wasm_i32x4_mul(x, w), wasm_i32x4_mul(quotient, q));
}

/* x - q where it is not negative: a minimum of unsigned numbers, as x - q wraps. */
static inline v128_t less4(v128_t x, v128_t q) { return wasm_u32x4_min(x, wasm_i32x4_sub(x, q)); }
#endif

static inline u32 least_s(u32 x, u32 q) {
    /* For x below 2^32, not 2^31: the borrow of 64 bits. */
    u64 rest = (u64)x - q;
    return (u32)(rest + (q & sign(rest)));
}

void EXPORT(forward_s)(u32 *x, const u32 *roots, u32 n, u32 q) {
    u32 twice = 2 * q;
    for (u32 count = 1, run = n / 2; run; count *= 2, run /= 2)
        for (u32 i = 0; i < count; i++) {
            u32 w = roots[count + i], ratio = roots[n + count + i], *a = x + 2 * i * run, *b = a + run, j = 0;
#ifdef __wasm_simd128__
            v128_t w4 = wasm_i32x4_splat(w), ratio4 = wasm_i32x4_splat(ratio), q4 = wasm_i32x4_splat(q);
            v128_t twice4 = wasm_i32x4_splat(twice);
            for (; j + 4 <= run; j += 4) {
                v128_t u = less4(wasm_v128_load(a + j), twice4), v = times4(wasm_v128_load(b + j), w4, ratio4, q4);
                wasm_v128_store(a + j, less4(wasm_i32x4_add(u, v), twice4));
                wasm_v128_store(b + j, less4(wasm_i32x4_add(wasm_i32x4_sub(u, v), twice4), twice4));
            }
#endif
            for (; j < run; j++) {
                u32 u = a[j], v = times_lazy_s(b[j], w, ratio, q);
                a[j] = least_s(u + v, twice);
                b[j] = least_s(u - v + twice, twice);
            }
        }
    for (u32 j = 0; j < n; j++) x[j] = least_s(x[j], q);
}

void EXPORT(backward_s)(u32 *x, const u32 *roots, u32 n, u32 last, u32 q) {
    u32 twice = 2 * q;
    for (u32 count = n / 2, run = 1; count; count /= 2, run *= 2)
        for (u32 i = 0; i < count; i++) {
            u32 w = roots[count + i], ratio = roots[n + count + i], *a = x + 2 * i * run, *b = a + run, j = 0;
#ifdef __wasm_simd128__
            v128_t w4 = wasm_i32x4_splat(w), ratio4 = wasm_i32x4_splat(ratio), q4 = wasm_i32x4_splat(q);
            v128_t twice4 = wasm_i32x4_splat(twice);
            for (; j + 4 <= run; j += 4) {
                v128_t u = wasm_v128_load(a + j), v = wasm_v128_load(b + j);
                wasm_v128_store(a + j, less4(wasm_i32x4_add(u, v), twice4));
                wasm_v128_store(b + j, times4(wasm_i32x4_add(wasm_i32x4_sub(u, v), twice4), w4, ratio4, q4));
            }
#endif
            for (; j < run; j++) {
                u32 u = a[j], v = b[j];
                a[j] = least_s(u + v, twice);
                b[j] = times_lazy_s(u - v + twice, w, ratio, q);
            }
        }
    u32 by = ratio_s(last, q);
    for (u32 j = 0; j < n; j++) x[j] = times_s(x[j], last, by, q);
}

/* ------------------------------------------------------------------------- products and sums */

/* Signed numbers smaller than the prime as residues. */
void EXPORT(small_l)(u64 *row, const int32_t *numbers, u32 n, u64 q) {
    for (u32 j = 0; j < n; j++) row[j] = (u64)(i64)numbers[j] + (q & sign((u64)(i64)numbers[j]));
}

void EXPORT(small_s)(u32 *row, const int32_t *numbers, u32 n, u32 q) {
    for (u32 j = 0; j < n; j++) row[j] = (u32)numbers[j] + (q & sign_s((u32)numbers[j]));
}

/* The ratios of factors. */
void EXPORT(ratios_l)(u64 *ratios, const u64 *factors, u32 n, u64 q) {
    for (u32 j = 0; j < n; j++) ratios[j] = ratio(factors[j], q);
}

void EXPORT(ratios_s)(u32 *ratios, const u32 *factors, u32 n, u32 q) {
    for (u32 j = 0; j < n; j++) ratios[j] = ratio_s(factors[j], q);
}

/* sums + values factors, or sums - values factors, modulo q. The factor of value j is the one at places[j], or at j where
 * `places` is null. */
#define ADD_PRODUCT(suffix, word, product, once)                                                                   \
    void EXPORT(add_product##suffix)(word * sums, const word *values, const word *factors, const word *ratios,     \
                                     const u32 *places, u32 n, u32 minus, word q) {                                \
        for (u32 j = 0; j < n; j++) {                                                                              \
            u32 at = places ? places[j] : j;                                                                       \
            word made = product(values[j], factors[at], ratios[at], q);                                            \
            sums[j] = once(minus ? sums[j] - made + q : sums[j] + made, q);                                        \
        }                                                                                                          \
    }
ADD_PRODUCT(_l, u64, times, less)
ADD_PRODUCT(_s, u32, times_s, least_s)

/* sums + values factor modulo q, for one factor. */
void EXPORT(add_multiple_l)(u64 *sums, const u64 *values, u64 factor, u32 n, u64 q) {
    u64 by = ratio(factor, q);
    for (u32 j = 0; j < n; j++) sums[j] = less(sums[j] + times(values[j], factor, by, q), q);
}

void EXPORT(add_multiple_s)(u32 *sums, const u32 *values, u32 factor, u32 n, u32 q) {
    u32 by = ratio_s(factor, q);
    for (u32 j = 0; j < n; j++) sums[j] = least_s(sums[j] + times_s(values[j], factor, by, q), q);
}

/* The places of the values of m(X^index) among those of m(X). Public. */
void EXPORT(automorphism)(u32 *places, u32 n, u32 bits, u32 index) {
    for (u32 j = 0; j < n; j++)
        places[j] = reversed(((2 * reversed(j, bits) + 1) * index & (2 * n - 1)) >> 1, bits);
}

/* Rows of either kind as centred numbers of 64 bits. */
void EXPORT(centred_l)(i64 *numbers, const u64 *row, u32 n, u64 q) {
    for (u32 j = 0; j < n; j++) numbers[j] = (i64)(row[j] - (q & sign((q >> 1) - row[j])));
}

void EXPORT(centred_s)(i64 *numbers, const u32 *row, u32 n, u32 q) {
    for (u32 j = 0; j < n; j++) numbers[j] = (i64)(row[j] - (q & sign((u64)(q >> 1) - row[j])));
}

/* The largest size of centred numbers. */
u64 EXPORT(largest)(const i64 *numbers, u32 n) {
    u64 found = 0;
    for (u32 j = 0; j < n; j++) {
        u64 minus = sign((u64)numbers[j]), size = ((u64)numbers[j] ^ minus) - minus;
        found += (size - found) & sign(found - size);
    }
    return found;
}

/* Words that differ. */
u32 EXPORT(differs)(const u64 *left, const u64 *right, u32 count) {
    u64 found = 0;
    for (u32 j = 0; j < count; j++) found |= left[j] ^ right[j];
    return (u32)(found >> 32 | found) != 0;
}

/* ------------------------------------------------------------------------- residues of messages */

static inline u64 residue(i64 number, u64 reciprocal, u64 q) {
    u64 minus = sign((u64)number), found = rest(((u64)number ^ minus) - minus, reciprocal, q);
    /* q - found for negative numbers; q itself becomes 0. */
    return less((found & ~minus) + ((q - found) & minus), q);
}

/* Whole doubles, up to 2^62 in size, times 2^shift, plus small numbers, modulo q: a row of 64 bits or, for short primes, of
 * 32. */
void EXPORT(message_l)(u64 *row, const double *whole, const int32_t *errors, u32 shift, u32 n, u64 reciprocal, u64 q) {
    for (u32 j = 0; j < n; j++) {
        u64 found = residue((i64)whole[j], reciprocal, q);
        for (u32 i = 0; i < shift; i++) found = less(2 * found, q);
        row[j] = less(found + (u64)(i64)errors[j] + (q & sign((u64)(i64)errors[j])), q);
    }
}

void EXPORT(message_s)(u32 *row, const double *whole, const int32_t *errors, u32 shift, u32 n, u64 reciprocal, u64 q) {
    for (u32 j = 0; j < n; j++) {
        u64 found = residue((i64)whole[j], reciprocal, q);
        for (u32 i = 0; i < shift; i++) found = less(2 * found, q);
        row[j] = (u32)less(found + (u64)(i64)errors[j] + (q & sign((u64)(i64)errors[j])), q);
    }
}

/* Mixed radix: (row - digit) factor modulo q, where row has words of 64 bits. */
void EXPORT(next_digit)(u64 *row, const i64 *digit, u64 factor, u32 n, u64 reciprocal, u64 q) {
    u64 by = ratio(factor, q);
    for (u32 j = 0; j < n; j++) row[j] = times(less(row[j] + q - residue(digit[j], reciprocal, q), q), factor, by, q);
}

/* A row of 32 bits with words of 64. */
void EXPORT(widened)(u64 *wide, const u32 *row, u32 n) {
    for (u32 j = 0; j < n; j++) wide[j] = row[j];
}

/* found q + digit in floating point. */
void EXPORT(horner)(double *found, const i64 *digit, double q, u32 n) {
    for (u32 j = 0; j < n; j++) found[j] = found[j] * q + (double)digit[j];
}

/* ------------------------------------------------------------------------- packed residues (public) */

#define PACKING(suffix, word)                                                                                      \
    void EXPORT(pack##suffix)(u64 * words, const word *row, u32 n, u32 bits) {                                     \
        u32 width = n / 64;                                                                                        \
        for (u32 j = 0; j < bits * width; j++) words[j] = 0;                                                       \
        for (u32 i = 0; i < 64; i++) {                                                                             \
            u32 shift = i * bits & 63;                                                                             \
            u64 *to = words + (i * bits >> 6) * width;                                                             \
            for (u32 j = 0; j < width; j++) to[j] |= (u64)row[i * width + j] << shift;                             \
            if (shift + bits > 64)                                                                                 \
                for (u32 j = 0; j < width; j++) to[width + j] |= (u64)row[i * width + j] >> (64 - shift);          \
        }                                                                                                          \
    }                                                                                                              \
    /* Whether all residues are below q. */                                                                        \
    u32 EXPORT(unpack##suffix)(word * row, const u64 *words, u32 n, u32 bits, u64 q) {                             \
        u32 width = n / 64, sound = 1;                                                                             \
        u64 mask = ((u64)1 << bits) - 1;                                                                           \
        for (u32 i = 0; i < 64; i++) {                                                                             \
            u32 shift = i * bits & 63;                                                                             \
            const u64 *from = words + (i * bits >> 6) * width;                                                     \
            for (u32 j = 0; j < width; j++) {                                                                      \
                u64 value = from[j] >> shift;                                                                      \
                if (shift + bits > 64) value |= from[width + j] << (64 - shift);                                   \
                value &= mask;                                                                                     \
                sound &= value < q;                                                                                \
                row[i * width + j] = (word)value;                                                                  \
            }                                                                                                      \
        }                                                                                                          \
        return sound;                                                                                              \
    }
PACKING(_l, u64)
PACKING(_s, u32)

/* ------------------------------------------------------------------------- draws */

/* Uniform residues from words of a public stream, from number `filled` on; the new number of them. Public. */
u32 EXPORT(accept_l)(u64 *row, u32 filled, u32 n, const u64 *words, u32 count, u64 limit, u64 reciprocal, u64 q) {
    for (u32 j = 0; j < count && filled < n; j++)
        if (words[j] < limit) row[filled++] = rest(words[j], reciprocal, q);
    return filled;
}

u32 EXPORT(accept_s)(u32 *row, u32 filled, u32 n, const u32 *words, u32 count, u32 limit, u64 reciprocal, u32 q) {
    for (u32 j = 0; j < count && filled < n; j++)
        if (words[j] < limit) row[filled++] = (u32)rest(words[j], reciprocal, q);
    return filled;
}

/* Numbers -1, 0 and 1 of the bytes below 255, from number `filled` on; the new number of them. Which bytes are skipped is
 * independent of those that are kept. */
u32 EXPORT(ternary)(int32_t *found, u32 filled, u32 n, const uint8_t *bytes, u32 count) {
    for (u32 j = 0; j < count && filled < n; j++)
        if (bytes[j] < 255) {
            u32 x = bytes[j], third = x * 171 >> 9; /* floor(x / 3) for x < 256 */
            found[filled++] = (int32_t)(x - 3 * third) - 1;
        }
    return filled;
}

/* Discrete Gaussian numbers: each is compared with all thresholds. */
void EXPORT(gaussian)(int32_t *found, const u64 *up, const u64 *low, const uint8_t *signs, u32 n, const u64 *thresholds,
                      u32 count) {
    for (u32 j = 0; j < n; j++) {
        u64 size = 0, h = up[j], l = low[j];
        for (u32 t = 0; t < count; t++) {
            u64 th = thresholds[2 * t], tl = thresholds[2 * t + 1];
            /* The borrows of (h, l) - (th, tl), by bits: 1 if the threshold is larger. */
            u64 first = ((~l & tl) | ((~l | tl) & (l - tl))) >> 63;
            u64 second = ((~h & th) | ((~h | th) & (h - th - first))) >> 63;
            size += 1 - second;
        }
        int32_t minus = -(int32_t)(signs[j >> 3] >> (7 - (j & 7)) & 1);
        found[j] = ((int32_t)size ^ minus) - minus;
    }
}

/* ------------------------------------------------------------------------- the Fourier transform */

/* sum over t of x_t exp(-+ 2 pi i k t / n) in place, for n a power of two, real and imaginary parts apart; cosines and
 * sines are those of 2 pi j / n for j < n / 2. `sign` is -1 or 1. */
void EXPORT(fourier)(double *re, double *im, const double *cosines, const double *sines, u32 n, u32 bits, double sign) {
    for (u32 j = 0; j < n; j++) {
        u32 r = reversed(j, bits);
        if (r > j) {
            double a = re[j], b = im[j];
            re[j] = re[r], im[j] = im[r], re[r] = a, im[r] = b;
        }
    }
    for (u32 run = 1; run < n; run *= 2) {
        u32 step = n / (2 * run);
        for (u32 begin = 0; begin < n; begin += 2 * run)
            for (u32 j = 0; j < run; j++) {
                double c = cosines[j * step], s = sign * sines[j * step];
                u32 a = begin + j, b = a + run;
                double x = re[b] * c - im[b] * s, y = re[b] * s + im[b] * c;
                re[b] = re[a] - x, im[b] = im[a] - y, re[a] += x, im[a] += y;
            }
    }
}

/* ------------------------------------------------------------------------- hashes and ciphers */

static inline u64 left64(u64 x, u32 by) { return by ? x << by | x >> (64 - by) : x; }
static inline u32 left32(u32 x, u32 by) { return x << by | x >> (32 - by); }

/* Keccak-f[1600] of FIPS 202 on 25 words. */
void EXPORT(keccak)(u64 *s) {
    u32 lfsr = 1;
    for (u32 round = 0; round < 24; round++) {
        u64 c[5], d, t;
        for (u32 x = 0; x < 5; x++) c[x] = s[x] ^ s[x + 5] ^ s[x + 10] ^ s[x + 15] ^ s[x + 20];
        for (u32 x = 0; x < 5; x++) {
            d = c[(x + 4) % 5] ^ left64(c[(x + 1) % 5], 1);
            for (u32 y = 0; y < 25; y += 5) s[x + y] ^= d;
        }
        u32 x = 1, y = 0;
        t = s[1];
        for (u32 i = 0; i < 24; i++) {
            u32 next = (2 * x + 3 * y) % 5;
            x = y, y = next;
            u64 kept = s[x + 5 * y];
            s[x + 5 * y] = left64(t, (i + 1) * (i + 2) / 2 % 64);
            t = kept;
        }
        for (u32 row = 0; row < 25; row += 5) {
            for (u32 i = 0; i < 5; i++) c[i] = s[row + i];
            for (u32 i = 0; i < 5; i++) s[row + i] = c[i] ^ (~c[(i + 1) % 5] & c[(i + 2) % 5]);
        }
        for (u32 j = 0; j < 7; j++) {
            if (lfsr & 1) s[0] ^= (u64)1 << ((1 << j) - 1);
            lfsr = lfsr << 1 ^ (lfsr >> 7) * 0x171;
        }
    }
}

#define QUARTER(a, b, c, d, p, q, r, t) \
    a += b, d = left32(d ^ a, p), c += d, b = left32(b ^ c, q), a += b, d = left32(d ^ a, r), c += d, b = left32(b ^ c, t);

/* ChaCha20 of RFC 8439: `bytes` xor the stream from a block on. The key and the nonce are 8 and 3 words. */
void EXPORT(chacha)(uint8_t *bytes, u32 size, const u32 *key, const u32 *nonce, u32 block) {
    for (u32 begin = 0; begin < size; begin += 64, block++) {
        u32 s[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, x[16];
        for (u32 i = 0; i < 8; i++) s[4 + i] = key[i];
        s[12] = block;
        for (u32 i = 0; i < 3; i++) s[13 + i] = nonce[i];
        for (u32 i = 0; i < 16; i++) x[i] = s[i];
        for (u32 i = 0; i < 10; i++) {
            for (u32 j = 0; j < 4; j++) { QUARTER(x[j], x[4 + j], x[8 + j], x[12 + j], 16, 12, 8, 7) }
            for (u32 j = 0; j < 4; j++) {
                QUARTER(x[j], x[4 + (j + 1) % 4], x[8 + (j + 2) % 4], x[12 + (j + 3) % 4], 16, 12, 8, 7)
            }
        }
        for (u32 i = 0; i < 64 && begin + i < size; i++)
            bytes[begin + i] ^= (uint8_t)((x[i / 4] + s[i / 4]) >> (8 * (i & 3)));
    }
}

/* Poly1305 of RFC 8439, of whole blocks of 16 bytes, under r and s; the tag has 16 bytes. Five limbs of 26 bits. */
void EXPORT(poly1305)(uint8_t *tag, const uint8_t *bytes, u32 blocks, const uint8_t *key) {
    const u32 *k = (const u32 *)key;
    u32 r0 = k[0] & 0x3ffffff, r1 = (k[0] >> 26 | k[1] << 6) & 0x3ffff03, r2 = (k[1] >> 20 | k[2] << 12) & 0x3ffc0ff;
    u32 r3 = (k[2] >> 14 | k[3] << 18) & 0x3f03fff, r4 = k[3] >> 8 & 0x00fffff;
    u32 h0 = 0, h1 = 0, h2 = 0, h3 = 0, h4 = 0;
    for (u32 i = 0; i < blocks; i++) {
        const u32 *m = (const u32 *)(bytes + 16 * i);
        h0 += m[0] & 0x3ffffff, h1 += (m[0] >> 26 | m[1] << 6) & 0x3ffffff, h2 += (m[1] >> 20 | m[2] << 12) & 0x3ffffff;
        h3 += (m[2] >> 14 | m[3] << 18) & 0x3ffffff, h4 += m[3] >> 8 | 1 << 24;
        u64 d0 = (u64)h0 * r0 + 5 * ((u64)h1 * r4 + (u64)h2 * r3 + (u64)h3 * r2 + (u64)h4 * r1);
        u64 d1 = (u64)h0 * r1 + (u64)h1 * r0 + 5 * ((u64)h2 * r4 + (u64)h3 * r3 + (u64)h4 * r2);
        u64 d2 = (u64)h0 * r2 + (u64)h1 * r1 + (u64)h2 * r0 + 5 * ((u64)h3 * r4 + (u64)h4 * r3);
        u64 d3 = (u64)h0 * r3 + (u64)h1 * r2 + (u64)h2 * r1 + (u64)h3 * r0 + 5 * ((u64)h4 * r4);
        u64 d4 = (u64)h0 * r4 + (u64)h1 * r3 + (u64)h2 * r2 + (u64)h3 * r1 + (u64)h4 * r0;
        d1 += d0 >> 26, d2 += d1 >> 26, d3 += d2 >> 26, d4 += d3 >> 26;
        h1 = d1 & 0x3ffffff, h2 = d2 & 0x3ffffff, h3 = d3 & 0x3ffffff, h4 = d4 & 0x3ffffff;
        u64 low = (d0 & 0x3ffffff) + 5 * (d4 >> 26);
        h0 = low & 0x3ffffff, h1 += (u32)(low >> 26);
    }
    for (u32 twice = 0; twice < 2; twice++) {
        h2 += h1 >> 26, h1 &= 0x3ffffff, h3 += h2 >> 26, h2 &= 0x3ffffff, h4 += h3 >> 26, h3 &= 0x3ffffff;
        h0 += 5 * (h4 >> 26), h4 &= 0x3ffffff, h1 += h0 >> 26, h0 &= 0x3ffffff;
    }
    /* h - (2^130 - 5) where it is not negative. */
    u32 g0 = h0 + 5, g1 = h1 + (g0 >> 26), g2 = h2 + (g1 >> 26), g3 = h3 + (g2 >> 26), g4 = h4 + (g3 >> 26) - (1 << 26);
    u32 take = (g4 >> 31) - 1;
    h0 = (h0 & ~take) | (g0 & 0x3ffffff & take), h1 = (h1 & ~take) | (g1 & 0x3ffffff & take);
    h2 = (h2 & ~take) | (g2 & 0x3ffffff & take), h3 = (h3 & ~take) | (g3 & 0x3ffffff & take);
    h4 = (h4 & ~take) | (g4 & take);
    u32 w[4] = {h0 | h1 << 26, h1 >> 6 | h2 << 20, h2 >> 12 | h3 << 14, h3 >> 18 | h4 << 8};
    u64 carry = 0;
    for (u32 i = 0; i < 4; i++) {
        carry += (u64)w[i] + k[4 + i];
        ((u32 *)tag)[i] = (u32)carry;
        carry >>= 32;
    }
}

/* The mixing of scrypt (RFC 7914) of one block of 128 r bytes, in place; `table` has 128 r n bytes, `spare` as many as the
 * block. The addresses depend on the passphrase: scrypt is made so. */
static void salsa(u32 *b) {
    u32 x[16];
    for (u32 i = 0; i < 16; i++) x[i] = b[i];
#define STEP(a, b, c, by) x[a] ^= left32(x[b] + x[c], by);
    for (u32 i = 0; i < 4; i++) {
        STEP(4, 0, 12, 7) STEP(8, 4, 0, 9) STEP(12, 8, 4, 13) STEP(0, 12, 8, 18)
        STEP(9, 5, 1, 7) STEP(13, 9, 5, 9) STEP(1, 13, 9, 13) STEP(5, 1, 13, 18)
        STEP(14, 10, 6, 7) STEP(2, 14, 10, 9) STEP(6, 2, 14, 13) STEP(10, 6, 2, 18)
        STEP(3, 15, 11, 7) STEP(7, 3, 15, 9) STEP(11, 7, 3, 13) STEP(15, 11, 7, 18)
        STEP(1, 0, 3, 7) STEP(2, 1, 0, 9) STEP(3, 2, 1, 13) STEP(0, 3, 2, 18)
        STEP(6, 5, 4, 7) STEP(7, 6, 5, 9) STEP(4, 7, 6, 13) STEP(5, 4, 7, 18)
        STEP(11, 10, 9, 7) STEP(8, 11, 10, 9) STEP(9, 8, 11, 13) STEP(10, 9, 8, 18)
        STEP(12, 15, 14, 7) STEP(13, 12, 15, 9) STEP(14, 13, 12, 13) STEP(15, 14, 13, 18)
    }
    for (u32 i = 0; i < 16; i++) b[i] += x[i];
}

static void mix(u32 *block, u32 *spare, u32 r) {
    u32 x[16];
    for (u32 i = 0; i < 16; i++) x[i] = block[16 * (2 * r - 1) + i];
    for (u32 i = 0; i < 2 * r; i++) {
        for (u32 j = 0; j < 16; j++) x[j] ^= block[16 * i + j];
        salsa(x);
        u32 *to = spare + 16 * (i / 2 + (i & 1) * r);
        for (u32 j = 0; j < 16; j++) to[j] = x[j];
    }
    for (u32 i = 0; i < 32 * r; i++) block[i] = spare[i];
}

void EXPORT(scrypt_mix)(u32 *block, u32 *table, u32 *spare, u32 n, u32 r) {
    u32 words = 32 * r;
    for (u32 i = 0; i < n; i++) {
        for (u32 j = 0; j < words; j++) table[i * words + j] = block[j];
        mix(block, spare, r);
    }
    for (u32 i = 0; i < n; i++) {
        u32 *from = table + (block[words - 16] & (n - 1)) * words;
        for (u32 j = 0; j < words; j++) block[j] ^= from[j];
        mix(block, spare, r);
    }
}

void EXPORT(wipe)(u64 *words, u32 count) {
    for (u32 j = 0; j < count; j++) words[j] = 0;
}
