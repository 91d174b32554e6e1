// Bands of the cosine transform and what they say of each bit, as in diffmark/pixel/spectrum.py and layout.py.

import { LAYOUT, READER, SPECTRUM } from "./pixel-constants.js";
import { Cosine } from "./pixel-fourier.js";
import { resample, whiten } from "./pixel-planes.js";

const { FRAME, AXIS_GUARD, GRID, GRID_GUARD, OUTLIER } = SPECTRUM;
const RING = 4; // cycles, width of a ring of radii
const ORDER = 2 ** 20; // more than there are coefficients
const RINGS = Math.ceil(FRAME / RING);

// Coefficients a side that the bands need, of FRAME.
export const KEPT = Math.min(FRAME, 2 * Math.ceil(Math.max(...LAYOUT.BANDS.map((band) => band.high))));

const LOWEST = 2 * Math.ceil(Math.max(...LAYOUT.BANDS.filter((band) => band.plane).map((band) => band.high)));

// Cycles a frame of a coefficient. Squares of halves are exact, so that both ends of a band are.
function radius(column, row) {
  return Math.sqrt((column / 2) ** 2 + (row / 2) ** 2);
}

function usable(k) {
  return k >= AXIS_GUARD && Math.abs(k - GRID) > GRID_GUARD && Math.abs(k - 2 * GRID) > GRID_GUARD;
}

// Places of a stable sort of 32-bit numbers.
export function argsort(numbers) {
  return Float64Array.from(numbers, (value, place) => value * ORDER + place).sort().map((value) => value % ORDER);
}

// The coefficients of one plane between two radii, dealt to `length` bits by a key.
export class Band {
  constructor({ name, plane, low, high }, length, key) {
    Object.assign(this, { name, plane, length });
    const index = [];
    const ring = [];
    for (let row = 0; row < KEPT; row++) {
      for (let column = 0; column < KEPT; column++) {
        const r = radius(column, row);
        if (!(r >= low && r < high && usable(row) && usable(column))) continue;
        index.push(row * KEPT + column);
        ring.push(Math.floor(r / RING));
      }
    }
    this.index = Int32Array.from(index);
    this.ring = Int32Array.from(ring);
    this.owner = new Int32Array(index.length);
    argsort(key.numbers(`${name} permutation`, index.length)).forEach((place, n) => {
      this.owner[place] = n % length;
    });
    this.sign = Int8Array.from(key.numbers(`${name} signs`, index.length), (number) => (number & 1 ? -1 : 1));
  }

  // The band's coefficients, each ring at unit deviation and without outliers.
  coefficients(transform) {
    const { index, ring } = this;
    const values = new Float64Array(index.length);
    const [sums, counts] = [new Float64Array(RINGS), new Float64Array(RINGS)];
    for (let n = 0; n < index.length; n++) {
      values[n] = transform[index[n]];
      sums[ring[n]] += values[n] * values[n];
      counts[ring[n]] += 1;
    }
    const deviation = sums.map((sum, k) => Math.max(Math.sqrt(sum / Math.max(counts[k], 1)), 1e-6));
    for (let n = 0; n < index.length; n++) {
      values[n] = Math.min(Math.max(values[n] / deviation[ring[n]], -OUTLIER), OUTLIER);
    }
    return values;
  }

  // Score of every bit.
  scores(transform) {
    const { owner, sign } = this;
    const values = this.coefficients(transform);
    const signal = new Float64Array(this.length);
    const energy = new Float64Array(this.length);
    for (let n = 0; n < values.length; n++) {
      signal[owner[n]] += sign[n] * values[n];
      energy[owner[n]] += values[n] * values[n];
    }
    return signal.map((sum, bit) => sum / Math.sqrt(Math.max(energy[bit], 1e-12)));
  }
}

// All bands of a key: scores of frames, which are lists of three planes of FRAME x FRAME.
export class Layout {
  constructor(key) {
    this.bands = LAYOUT.BANDS.map((band) => new Band(band, LAYOUT.LENGTH, key));
    this.cosine = new Cosine(FRAME, KEPT);
    this.coarse = new Cosine(READER.CHROMA_SIDE, LOWEST);
  }

  scores(frame, present = null) {
    const transforms = frame.slice(1).map((plane) => this.cosine.run(centred(plane, present)));
    return [...this.lumaScores(frame[0], present), ...this.#chroma(transforms)];
  }

  // Scores of the chroma bands alone, of two planes of CHROMA_SIDE x CHROMA_SIDE.
  chromaScores(chroma, present) {
    return this.#chroma(chroma.map((plane) => {
      const transform = new Float64Array(LOWEST * KEPT);
      const found = this.coarse.run(centred(plane, present));
      for (let row = 0; row < LOWEST; row++) {
        transform.set(found.subarray(row * LOWEST, (row + 1) * LOWEST), row * KEPT);
      }
      return transform;
    }));
  }

  #chroma(transforms) {
    return this.bands.filter((band) => band.plane).map((band) => band.scores(transforms[band.plane - 1]));
  }

  lumaScores(luma, present = null) {
    const transform = this.cosine.run(whiten(luma, present).values);
    return this.bands.filter((band) => !band.plane).map((band) => band.scores(transform));
  }
}

function centred({ values }, present) {
  const weights = present?.values;
  let [sum, count] = [0, 0];
  for (let n = 0; n < values.length; n++) {
    const weight = weights ? weights[n] : 1;
    sum += values[n] * weight;
    count += weight;
  }
  const mean = sum / Math.max(count, 1);
  const found = new Float32Array(values.length);
  for (let n = 0; n < values.length; n++) found[n] = (values[n] - mean) * (weights ? weights[n] : 1);
  return found;
}

export function toFrame(plane) {
  return resample(plane, FRAME, FRAME);
}

// Mean signal of each band, estimated without the secret.
export function gains(scores) {
  return scores.map((band) => {
    const power = band.reduce((sum, score) => sum + score * score, 0) / band.length;
    return Math.sqrt(Math.max(power - 1, LAYOUT.MIN_GAIN ** 2));
  });
}

// Log-likelihood ratio of 1 against 0 for every bit.
export function margins(scores) {
  const weights = gains(scores);
  return scores[0].map((_, bit) => scores.reduce((sum, band, k) => sum + 2 * weights[k] * band[bit], 0));
}

// Log-likelihood ratio, in nats, of some mark against none.
export function evidence(scores) {
  const cost = gains(scores).reduce((sum, gain) => sum + gain * gain, 0);
  return margins(scores).reduce((sum, margin) => {
    const half = Math.abs(margin) / 2;
    return sum + half + Math.log1p(Math.exp(-2 * half)) - Math.LN2;
  }, (-scores[0].length / 2) * cost);
}

// Hex digits of the bits, the first bit first.
export function bitsToHex(margins) {
  const digits = Math.ceil(margins.length / 4);
  const bits = Array.from(margins, (margin) => (margin > 0 ? "1" : "0")).join("").padStart(4 * digits, "0");
  return bits.match(/..../g).map((four) => parseInt(four, 2).toString(16)).join("");
}
