// The key of the pixel layer and the numbers derived from it, as in diffmark/pixel/keys.py.
// SHA-256 is written out: crypto.subtle is missing where a page is served over plain HTTP.

import { KEYS } from "./pixel-constants.js";

const encode = (text) => new TextEncoder().encode(text);

// Cube and square roots of the first primes: the constants of SHA-256.
const PRIMES = Array.from({ length: 312 }, (_, n) => n).filter((n) => n > 1 && isPrime(n));
const ROUND = Uint32Array.from(PRIMES, (p) => fraction(Math.cbrt(p)));
const START = Uint32Array.from(PRIMES.slice(0, 8), (p) => fraction(Math.sqrt(p)));

function isPrime(n) {
  for (let d = 2; d * d <= n; d++) if (n % d === 0) return false;
  return true;
}

function fraction(x) {
  return Math.floor((x - Math.floor(x)) * 2 ** 32);
}

// The digest of bytes, 32 bytes.
export function sha256(message) {
  const blocks = Math.ceil((message.length + 9) / 64);
  const padded = new Uint8Array(64 * blocks);
  padded.set(message);
  padded[message.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(message.length / 2 ** 29));
  view.setUint32(padded.length - 4, message.length << 3);
  const state = Uint32Array.from(START);
  const words = new Int32Array(64);
  for (let block = 0; block < blocks; block++) compress(state, words, view, 64 * block);
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, place) => digest.setUint32(4 * place, word));
  return new Uint8Array(digest.buffer);
}

function compress(state, words, view, offset) {
  for (let t = 0; t < 16; t++) words[t] = view.getInt32(offset + 4 * t);
  for (let t = 16; t < 64; t++) {
    const a = words[t - 15];
    const b = words[t - 2];
    const low = turn(a, 7) ^ turn(a, 18) ^ (a >>> 3);
    const high = turn(b, 17) ^ turn(b, 19) ^ (b >>> 10);
    words[t] = (words[t - 16] + low + words[t - 7] + high) | 0;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let t = 0; t < 64; t++) {
    const choice = (e & f) ^ (~e & g);
    const first = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + choice + ROUND[t] + words[t]) | 0;
    const majority = (a & b) ^ (a & c) ^ (b & c);
    const second = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + majority) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + first) | 0;
    d = c;
    c = b;
    b = a;
    a = (first + second) | 0;
  }
  [a, b, c, d, e, f, g, h].forEach((word, place) => { state[place] += word; });
}

function turn(x, n) {
  return (x >>> n) | (x << (32 - n));
}

function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

export function hmac(key, message) { // for keys of at most 64 bytes
  const block = new Uint8Array(64);
  block.set(key);
  const inner = sha256(joined(block.map((byte) => byte ^ 0x36), message));
  return sha256(joined(block.map((byte) => byte ^ 0x5c), inner));
}

// HKDF-SHA256 (RFC 5869), 32 bytes.
export function hkdf(key, salt, info) {
  return hmac(hmac(salt, key), joined(info, Uint8Array.of(1)));
}

export function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// The bytes of a pasted key; an error says what is wrong with it.
export function parseKey(text) {
  const digits = text.trim();
  const count = 2 * KEYS.KEY_BYTES;
  if (!/^[0-9a-f]*$/i.test(digits)) throw new Error(`A key has hex digits only: 0 to 9 and a to f, ${count} of them.`);
  if (digits.length !== count) throw new Error(`A key has ${count} hex digits; these are ${digits.length}.`);
  return Uint8Array.from(digits.match(/../g), (pair) => parseInt(pair, 16));
}

export class OperatorKey {
  #bytes;

  // 64 hex digits, or null for the public key.
  constructor(hex = null) {
    this.#bytes = hex === null ? sha256(encode(KEYS.PUBLIC_PHRASE)) : parseKey(hex);
    this.id = toHex(this.subkey("id").subarray(0, 4));
  }

  subkey(purpose) {
    return hkdf(this.#bytes, encode(KEYS.SALT), encode(purpose));
  }

  // `count` uniform 32-bit numbers: SHA-256(subkey, counter), big-endian.
  numbers(purpose, count) {
    const message = joined(this.subkey(purpose), new Uint8Array(4));
    const counter = new DataView(message.buffer, KEYS.KEY_BYTES);
    const found = new Uint32Array(8 * Math.ceil(count / 8));
    for (let block = 0; 8 * block < count; block++) {
      counter.setUint32(0, block);
      const digest = new DataView(sha256(message).buffer);
      for (let word = 0; word < 8; word++) found[8 * block + word] = digest.getUint32(4 * word);
    }
    return found.subarray(0, count);
  }
}
