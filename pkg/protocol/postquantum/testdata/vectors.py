#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the test vectors of the post-quantum exchange, as JSON.

It first checks itself with fips203.json. It shares no code with ropewalk: Curve25519 (RFC 7748), ChaCha20-Poly1305 (RFC 8439), ML-KEM-768 (FIPS 203) and the
handshake of WireGuard are written from their specifications, over Python's hashlib and hmac. Run: vectors.py > vectors.json
"""
import hashlib, hmac, json, os, struct

def blake2s(*parts): return hashlib.blake2s(b"".join(parts)).digest()
def HMAC(key, data): return hmac.new(key, data, hashlib.blake2s).digest()
def kdf(n, chain, data):
    prk, out, last = HMAC(chain, data), [], b""
    for i in range(1, n + 1):
        last = HMAC(prk, last + bytes([i]))
        out.append(last)
    return out

# Curve25519 (RFC 7748, section 5)
P = 2**255 - 19
def x25519(k, u):
    k = int.from_bytes(bytes([k[0] & 248]) + k[1:31] + bytes([k[31] & 127 | 64]), "little")
    u = int.from_bytes(u, "little") % 2**255
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit: x2, z2, x3, z3 = x3, z3, x2, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a, b * b
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
    if swap: x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")
def public(k): return x25519(k, (9).to_bytes(32, "little"))

# ChaCha20-Poly1305 (RFC 8439, section 2) with the nonce of zeros that a handshake uses
def chacha(key, counter):
    s = list(struct.unpack("<16I", b"expand 32-byte k" + key + struct.pack("<I", counter) + bytes(12)))
    w = s[:]
    def rot(v, n): return (v << n | v >> 32 - n) & 0xFFFFFFFF
    def quarter(a, b, c, d):
        for x, y, z, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            w[x] = (w[x] + w[y]) & 0xFFFFFFFF
            w[z] = rot(w[z] ^ w[x], n)
    for _ in range(10):
        for i in range(4): quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4): quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((x + y) & 0xFFFFFFFF for x, y in zip(w, s)))
def seal(key, text, ad):
    stream = b"".join(chacha(key, 1 + i) for i in range(len(text) // 64 + 1))
    c = bytes(a ^ b for a, b in zip(text, stream))
    otk = chacha(key, 0)
    r, s = int.from_bytes(otk[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF, int.from_bytes(otk[16:32], "little")
    data = ad + bytes(-len(ad) % 16) + c + bytes(-len(c) % 16) + struct.pack("<QQ", len(ad), len(c))
    acc = 0
    for i in range(0, len(data), 16):
        acc = (acc + int.from_bytes(data[i:i + 16] + b"\1", "little")) * r % (2**130 - 5)
    return c + ((acc + s) % 2**128).to_bytes(16, "little")

# ML-KEM-768 (FIPS 203)
Q, N, K, DU, DV = 3329, 256, 3, 10, 4
def bitrev7(i): return int(f"{i:07b}"[::-1], 2)
ZETA = [pow(17, bitrev7(i), Q) for i in range(128)]
GAMMA = [pow(17, 2 * bitrev7(i) + 1, Q) for i in range(128)]
def ntt(f):
    f, i, length = f[:], 1, 128
    while length >= 2:
        for start in range(0, N, 2 * length):
            z = ZETA[i]; i += 1
            for j in range(start, start + length):
                t = z * f[j + length] % Q
                f[j + length], f[j] = (f[j] - t) % Q, (f[j] + t) % Q
        length //= 2
    return f
def intt(f):
    f, i, length = f[:], 127, 2
    while length <= 128:
        for start in range(0, N, 2 * length):
            z = ZETA[i]; i -= 1
            for j in range(start, start + length):
                t = f[j]
                f[j], f[j + length] = (t + f[j + length]) % Q, z * (f[j + length] - t) % Q
        length *= 2
    return [x * 3303 % Q for x in f]
def mul(f, g):
    h = []
    for i in range(128):
        a0, a1, b0, b1 = f[2 * i], f[2 * i + 1], g[2 * i], g[2 * i + 1]
        h += [(a0 * b0 + a1 * b1 * GAMMA[i]) % Q, (a0 * b1 + a1 * b0) % Q]
    return h
def add(f, g): return [(x + y) % Q for x, y in zip(f, g)]
def encode(d, f):
    bits = [x >> j & 1 for x in f for j in range(d)]
    return bytes(sum(bits[i + j] << j for j in range(8)) for i in range(0, len(bits), 8))
def decode(d, b):
    bits = [x >> j & 1 for x in b for j in range(8)]
    return [sum(bits[i * d + j] << j for j in range(d)) % (Q if d == 12 else 1 << d) for i in range(N)]
def compress(d, f): return [((x << d) + Q // 2) // Q % (1 << d) for x in f]
def decompress(d, f): return [(x * Q + (1 << d - 1)) >> d for x in f]
def sample_ntt(rho, j, i):
    s, out, at = hashlib.shake_128(rho + bytes([j, i])).digest(4096), [], 0
    while len(out) < N:
        a, b, c = s[at:at + 3]; at += 3
        for d in (a + 256 * (b % 16), b // 16 + 16 * c):
            if d < Q and len(out) < N: out.append(d)
    return out
def cbd(b):
    bits = [x >> j & 1 for x in b for j in range(8)]
    return [(bits[4 * i] + bits[4 * i + 1] - bits[4 * i + 2] - bits[4 * i + 3]) % Q for i in range(N)]
def prf(s, n): return cbd(hashlib.shake_256(s + bytes([n])).digest(128))
def G(b): h = hashlib.sha3_512(b).digest(); return h[:32], h[32:]
def H(b): return hashlib.sha3_256(b).digest()
def keygen(seed):
    d, z = seed[:32], seed[32:]
    rho, sigma = G(d + bytes([K]))
    A = [[sample_ntt(rho, j, i) for j in range(K)] for i in range(K)]
    s, e = [ntt(prf(sigma, i)) for i in range(K)], [ntt(prf(sigma, K + i)) for i in range(K)]
    t = []
    for i in range(K):
        acc = e[i]
        for j in range(K): acc = add(acc, mul(A[i][j], s[j]))
        t.append(acc)
    ek = b"".join(encode(12, x) for x in t) + rho
    return ek, b"".join(encode(12, x) for x in s) + ek + H(ek) + z
def pke(ek, m, r):
    t, rho = [decode(12, ek[384 * i:384 * i + 384]) for i in range(K)], ek[384 * K:]
    A = [[sample_ntt(rho, j, i) for j in range(K)] for i in range(K)]
    y, e1, e2 = [ntt(prf(r, i)) for i in range(K)], [prf(r, K + i) for i in range(K)], prf(r, 2 * K)
    c = b""
    for i in range(K):
        acc = [0] * N
        for j in range(K): acc = add(acc, mul(A[j][i], y[j]))
        c += encode(DU, compress(DU, add(intt(acc), e1[i])))
    acc = [0] * N
    for j in range(K): acc = add(acc, mul(t[j], y[j]))
    return c + encode(DV, compress(DV, add(add(intt(acc), e2), decompress(1, decode(1, m)))))
def encapsulate(ek, m):
    ss, r = G(m + H(ek))
    return ss, pke(ek, m, r)
def decapsulate(dk, c):
    s, ek, h, z = [decode(12, dk[384 * i:384 * i + 384]) for i in range(K)], dk[1152:2336], dk[2336:2368], dk[2368:]
    u, v = [decompress(DU, decode(DU, c[320 * i:320 * i + 320])) for i in range(K)], decompress(DV, decode(DV, c[960:]))
    acc = [0] * N
    for i in range(K): acc = add(acc, mul(s[i], ntt(u[i])))
    m = encode(1, compress(1, [(x - y) % Q for x, y in zip(v, intt(acc))]))
    ss, r = G(m + h)
    return ss if pke(ek, m, r) == c else hashlib.shake_256(z + c).digest(32)

def handshake(i, r, ei, er, timestamp, psk):
    """WireGuard's handshake (paper, section 5.4), and the exporter X and hash h of section 3 of docs/dev/post-quantum.md."""
    S_i, S_r, E_i, E_r = public(i), public(r), public(ei), public(er)
    c = blake2s(b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s")
    h = blake2s(blake2s(c, b"WireGuard v1 zx2c4 Jason@zx2c4.com"), S_r)
    h = blake2s(h, E_i); c = kdf(1, c, E_i)[0]
    c, k = kdf(2, c, x25519(ei, S_r)); h = blake2s(h, seal(k, S_i, h))
    c, k = kdf(2, c, x25519(i, S_r)); h = blake2s(h, seal(k, timestamp, h))
    h = blake2s(h, E_r); c = kdf(1, c, E_r)[0]
    c = kdf(1, c, x25519(er, E_i))[0]; c = kdf(1, c, x25519(er, S_i))[0]
    c, t, k = kdf(3, c, psk); h = blake2s(h, t); h = blake2s(h, seal(k, b"", h))
    return (*kdf(3, c, b""), h)

def exchange(S_o, S_a, X, h, seed, m):
    ek, dk = keygen(seed)
    ss, ct = encapsulate(ek, m)
    assert decapsulate(dk, ct) == ss
    T = blake2s(b"ropewalk post-quantum 1 ML-KEM-768 BLAKE2s", S_o, S_a, h, ek, ct)
    c, = kdf(1, X, ss)
    Qk, Kk, I = kdf(3, c, T)
    return dict(ek=ek, ct=ct, shared=ss, transcript=T, chain=c, key=Qk, id=struct.unpack("<H", I[:2])[0], tag=HMAC(Kk, T)[:16])
def effective(psk, q): return kdf(1, kdf(1, psk, q)[0], blake2s(b"ropewalk post-quantum 1 preshared key"))[0]

def vector(n, psk):
    def secret(name, size=32): return hashlib.shake_256(f"ropewalk vector {n} {name}".encode()).digest(size)
    v = dict(psk=psk, initiator=secret("initiator"), responder=secret("responder"), initiator_ephemeral=secret("ei"),
             responder_ephemeral=secret("er"), timestamp=struct.pack(">QI", 2**62 + 10 + 1800000000 + n, 0x01710000 | n), seed=secret("seed", 64), random=secret("m"))
    v["send"], v["receive"], v["exporter"], v["hash"] = handshake(v["initiator"], v["responder"], v["initiator_ephemeral"], v["responder_ephemeral"], v["timestamp"], psk)
    v.update(exchange(public(v["initiator"]), public(v["responder"]), v["exporter"], v["hash"], v["seed"], v["random"]))
    v["effective"] = effective(psk, v["key"])
    v["rejected"] = decapsulate(keygen(v["seed"])[1], bytes([v["ct"][0] ^ 1]) + v["ct"][1:])
    return {k: x if isinstance(x, int) else x.hex() for k, x in v.items()}

assert x25519(bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"), bytes.fromhex(
    "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")).hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fips203.json")) as f: official = json.load(f)
def unhex(t): return {k: bytes.fromhex(x) for k, x in t.items()}
for t in map(unhex, official["keys"]): assert keygen(t["d"] + t["z"]) == (t["ek"], t["dk"])
for t in map(unhex, official["encapsulations"]): assert encapsulate(t["ek"], t["m"]) == (t["k"], t["c"])
for t in map(unhex, official["decapsulations"]): assert decapsulate(bytes.fromhex(official["decapsulation_key"]), t["c"]) == t["k"]
print(json.dumps([vector(1, bytes(32)), vector(2, hashlib.sha256(b"psk").digest()), vector(3, b"\xff" * 32)], indent=1))
