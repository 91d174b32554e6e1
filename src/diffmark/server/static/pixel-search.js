// The search for a view: how a picture was rotated, scaled, mirrored, stretched and moved since it was marked.
// The steps are those of diffmark/pixel/tones.py and search.py: log-polar shift and add, coherent sum, hill climbing.

import { SEARCH, SPECTRUM, TONES } from "./pixel-constants.js";
import { powerSpectrum } from "./pixel-fourier.js";
import { box, lookUp, resample, round, whiten } from "./pixel-planes.js";

const { FRAME } = SPECTRUM;
const {
  SIZE, ANGLES, STEP, MIN_SCALE, MAX_SCALE, LOCAL, PEAK, ASPECTS, CANDIDATES, MIN_PEAK, POSITIONS, TURN_STEP,
  SCALE_STEP, SHIFT_STEP, BLOCK, SHRINK,
} = SEARCH;
const COLUMNS = SIZE / 2 + 1; // of the half spectrum
const NEAR = 6; // bins around a peak of the shift and add that belong to it
const FIRST = Math.trunc(Math.log(MIN_SCALE) / STEP); // the lowest shift of log radius
const SHIFTS = Math.trunc(Math.log(MAX_SCALE) / STEP) + 1 - FIRST;
const TAU = 2 * Math.PI;

// --- matrices [[a, b], [c, d]] and vectors [x, y] ---

const times = ([[a, b], [c, d]], [[e, f], [g, h]]) => [[a * e + b * g, a * f + b * h], [c * e + d * g, c * f + d * h]];
const apply = ([[a, b], [c, d]], [x, y]) => [a * x + b * y, c * x + d * y];
const scaled = (matrix, factor) => matrix.map((row) => row.map((value) => factor * value));
const determinant = ([[a, b], [c, d]]) => a * d - b * c;
const inverse = ([[a, b], [c, d]]) => scaled([[d, -b], [-c, a]], 1 / determinant([[a, b], [c, d]]));

// --- tones ---

// Frequencies (kx, ky) in cycles a frame and phases of one key.
export class Tones {
  constructor(key) {
    this.frequencies = frequencies(key.numbers("tone frequencies", 64 * TONES.COUNT));
    this.phases = Array.from(key.numbers("tone phases", TONES.COUNT), (number) => (number / 2 ** 32) * TAU);
  }
}

function frequencies(numbers) {
  const span = Math.trunc(2 * TONES.HIGH * TONES.STEPS);
  const length = (x, y) => Math.sqrt(x * x + y * y);
  const kept = [];
  for (let n = 0; n < numbers.length && kept.length < TONES.COUNT; n += 2) {
    const x = ((numbers[n] % span) - Math.floor(span / 2)) / TONES.STEPS;
    const y = (numbers[n + 1] % Math.floor(span / 2)) / TONES.STEPS;
    if (!(length(x, y) >= TONES.LOW && length(x, y) < TONES.HIGH)) continue;
    const apart = ([kx, ky]) => Math.min(length(x - kx, y - ky), length(x + kx, y + ky)) >= TONES.APART;
    if (kept.every(apart)) kept.push([x, y]);
  }
  return kept;
}

// --- log-polar shift and add ---

// The picture in square pixels with an area of FRAME^2 (at most SIZE a side), and its pixels a unit.
function analysisPlane(luma) {
  const { width, height } = luma;
  const scale = Math.min(FRAME / Math.sqrt(height * width), SIZE / Math.max(height, width));
  const [rows, columns] = [height, width].map((side) => Math.max(8, round(side * scale)));
  return { plane: resample(luma, columns, rows), unit: Math.sqrt(rows * columns) };
}

let grid = null;

// Look-up into the half spectrum: flat index of the nearest bin, number of radii, lowest radius.
function polarGrid() {
  if (grid) return grid;
  const lowest = ((TONES.LOW * MIN_SCALE) / 1.2) * (SIZE / FRAME);
  const highest = Math.min(TONES.HIGH * MAX_SCALE * 1.1 * (SIZE / FRAME), SIZE / 2 - 2);
  const count = Math.trunc(Math.log(highest / lowest) / STEP) + 1;
  const index = new Int32Array(ANGLES * count);
  for (let turn = 0; turn < ANGLES; turn++) {
    const [cos, sin] = [Math.cos((turn * Math.PI) / ANGLES), Math.sin((turn * Math.PI) / ANGLES)];
    for (let n = 0; n < count; n++) {
      const radius = lowest * Math.exp(n * STEP);
      const sign = cos < 0 ? -1 : 1;
      const column = round(sign * cos * radius);
      const row = (round(sign * sin * radius) + SIZE) % SIZE;
      index[turn * count + n] = row * COLUMNS + column;
    }
  }
  grid = { index, count, lowest };
  return grid;
}

// Levelled power spectrum on the log-polar grid, mean 0 at every radius. Rows of `ANGLES` angles, twice over; each has
// SHIFTS zeros on both sides, so that every shift stays inside.
function logPolar(white) {
  const power = powerSpectrum(white, SIZE);
  const level = box(power, LOCAL, "wrap").values;
  const { index, count } = polarGrid();
  const stride = count + 2 * SHIFTS;
  const values = new Float32Array(2 * ANGLES * stride);
  const means = new Float64Array(count);
  for (let n = 0; n < index.length; n++) {
    const place = index[n];
    const ratio = Math.min(power.values[place] / Math.max(level[place], 1e-9), PEAK);
    values[Math.floor(n / count) * stride + SHIFTS + (n % count)] = ratio;
    means[n % count] += ratio / ANGLES;
  }
  for (let n = 0; n < index.length; n++) {
    values[Math.floor(n / count) * stride + SHIFTS + (n % count)] -= means[n % count];
  }
  values.copyWithin(ANGLES * stride, 0, ANGLES * stride);
  return { values, stride, count };
}

// Tones of a marked picture of this aspect in square units of its area, mirrored left to right if asked.
function moved(tones, aspect, mirror) {
  const root = Math.sqrt(aspect);
  return tones.frequencies.map(([kx, ky]) => [((mirror ? -1 : 1) * kx) / root, ky * root]);
}

// Peaks {z, angle, scale, mirror, aspect} over mirror images and aspects, best first.
function candidates(polar, tones, unit) {
  const found = [];
  for (const aspect of ASPECTS) {
    for (const mirror of [false, true]) {
      const total = shiftAndAdd(polar, moved(tones, aspect, mirror));
      for (let n = 0; n < CANDIDATES; n++) {
        const { row, column, value } = takePeak(total);
        const scale = (Math.exp((FIRST + column) * STEP) * unit) / FRAME;
        found.push({ z: value, angle: (row * Math.PI) / ANGLES, scale, mirror, aspect });
      }
    }
  }
  return found.sort((a, b) => b.z - a.z);
}

// The map added up at every tone's angle and radius, (ANGLES, SHIFTS), in robust standard deviations.
function shiftAndAdd({ values, stride, count }, frequencies) {
  const used = new Float64Array(SHIFTS);
  const starts = frequencies.map(([kx, ky]) => {
    const [turn, first] = polarPlace(kx, ky);
    for (let n = Math.max(0, -first); n < Math.min(SHIFTS, count - first); n++) used[n] += 1;
    const inside = Math.min(Math.max(first, -SHIFTS), count); // beyond it there are zeros only
    return turn * stride + SHIFTS + inside;
  });
  const factors = used.map((n) => (n < 0.6 * frequencies.length ? 0 : 1 / Math.sqrt(n)));
  const total = new Float32Array(ANGLES * SHIFTS);
  const sums = new Float64Array(SHIFTS);
  for (let row = 0; row < ANGLES; row++) {
    addRows(sums.fill(0), values, starts, row * stride);
    for (let n = 0; n < SHIFTS; n++) total[row * SHIFTS + n] = sums[n] * factors[n];
  }
  const spread = Math.max(1.4826 * sampledMedian(total), 1e-9);
  for (let n = 0; n < total.length; n++) total[n] /= spread;
  return total;
}

// Angle and radius of a frequency in steps of the grid, the radius at the lowest shift.
function polarPlace(kx, ky) {
  const angle = (Math.atan2(ky, kx) + Math.PI) % Math.PI;
  const radius = (Math.sqrt(kx * kx + ky * ky) * SIZE) / FRAME;
  return [round((angle / Math.PI) * ANGLES) % ANGLES, round(Math.log(radius / polarGrid().lowest) / STEP) + FIRST];
}

// Stretches of `values` added to `sums`, four at a time: most of the search's first step is spent here.
function addRows(sums, values, starts, offset) {
  let t = 0;
  for (; t + 4 <= starts.length; t += 4) {
    const [a, b, c, d] = [starts[t] + offset, starts[t + 1] + offset, starts[t + 2] + offset, starts[t + 3] + offset];
    for (let n = 0; n < sums.length; n++) sums[n] += values[a + n] + values[b + n] + values[c + n] + values[d + n];
  }
  for (; t < starts.length; t++) {
    const a = starts[t] + offset;
    for (let n = 0; n < sums.length; n++) sums[n] += values[a + n];
  }
}

function sampledMedian(total) {
  const sample = [];
  for (let row = 0; row < ANGLES; row += 4) {
    for (let n = 0; n < SHIFTS; n += 4) sample.push(Math.abs(total[row * SHIFTS + n]));
  }
  return median(sample);
}

function median(values) {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// The largest value of the shift and add; its neighbourhood is taken out.
function takePeak(total) {
  const place = argmax(total);
  const [row, column, value] = [Math.floor(place / SHIFTS), place % SHIFTS, total[place]];
  for (let y = row - NEAR; y <= row + NEAR; y++) {
    const start = ((y + ANGLES) % ANGLES) * SHIFTS;
    total.fill(-9, start + Math.max(0, column - NEAR), start + Math.min(SHIFTS, column + NEAR + 1));
  }
  return { row, column, value };
}

function argmax(values) {
  let best = 0;
  for (let n = 1; n < values.length; n++) if (values[n] > values[best]) best = n;
  return best;
}

// The matrix of a view: marked units to received units (half turn not yet known).
function linear({ angle, scale, mirror, aspect }) {
  const [cos, sin, root] = [Math.cos(angle), Math.sin(angle), Math.sqrt(aspect)];
  const stretch = [[(mirror ? -1 : 1) * root, 0], [0, 1 / root]];
  return scaled(times([[cos, -sin], [sin, cos]], stretch), 1 / scale);
}

// --- coherent sum ---

// exp(-2 pi i frequency places), as {re, im}.
function wave(frequency, places) {
  const re = new Float64Array(places.length);
  const im = new Float64Array(places.length);
  places.forEach((place, n) => {
    re[n] = Math.cos(TAU * frequency * place);
    im[n] = -Math.sin(TAU * frequency * place);
  });
  return { re, im };
}

// The tones of a whitened picture, demodulated near one map and summed over blocks.
class Coherence {
  constructor(white, unit, tones, matrix) {
    Object.assign(this, { tones, matrix });
    this.base = this.#received(matrix);
    const [columns, rows] = [white.width, white.height].map((size) => Math.floor(size / BLOCK));
    const x = centredPlaces(white.width, columns * BLOCK, unit);
    const y = centredPlaces(white.height, rows * BLOCK, unit);
    this.x = blockMeans(x);
    this.y = blockMeans(y);
    this.blocks = this.base.map(([fx, fy]) => demodulated(white, wave(fx, x), wave(fy, y), columns, rows));
    const sums = this.blocks.map(({ re, im }) => Math.hypot(sum(re), sum(im)));
    this.limit = 3 * Math.max(median(sums), 1e-9);
  }

  // Frequencies under a map, cycles a received unit: k^T M^-1.
  #received(matrix) {
    const [[a, b], [c, d]] = inverse(matrix);
    return this.tones.frequencies.map(([kx, ky]) => [kx * a + ky * c, kx * b + ky * d]);
  }

  // Of each tone, [re, im]; large ones are clipped to 3.
  responses(matrix) {
    return this.#received(matrix).map(([fx, fy], t) => {
      const [re, im] = blockSum(this.blocks[t], wave(fx - this.base[t][0], this.x), wave(fy - this.base[t][1], this.y));
      const factor = 3 / Math.max(Math.hypot(re, im), this.limit);
      return [factor * re, factor * im];
    });
  }

  // Best positions of the received picture, also turned by half: [matrix, offset], best first.
  positions() {
    const values = this.responses(this.matrix);
    const found = [false, true].flatMap((half) => {
      const matrix = half ? scaled(this.matrix, -1) : this.matrix;
      const total = this.#positionMap(half ? values.map(([re, im]) => [re, -im]) : values);
      return Array.from({ length: POSITIONS }, () => {
        const { row, column, value } = takePosition(total);
        const place = [column / FRAME - 0.5, row / FRAME - 0.5];
        return { value, matrix, offset: apply(scaled(matrix, -1), place) };
      });
    });
    return found.sort((a, b) => b.value - a.value).slice(0, POSITIONS);
  }

  // The coherent sum for every place of the received centre in the marked frame, (FRAME, FRAME).
  #positionMap(values) {
    const places = Float64Array.from({ length: FRAME }, (_, n) => n / FRAME);
    const total = new Float32Array(FRAME * FRAME);
    this.tones.frequencies.forEach(([kx, ky], t) => {
      const [columns, rows] = [wave(kx, places), wave(ky, places)];
      const [re, im] = turned(values[t], -this.tones.phases[t]);
      for (let y = 0, n = 0; y < FRAME; y++) {
        const a = rows.re[y] * re - rows.im[y] * im;
        const b = rows.re[y] * im + rows.im[y] * re;
        for (let x = 0; x < FRAME; x++, n++) total[n] += a * columns.re[x] - b * columns.im[x];
      }
    });
    return total;
  }

  // The coherent sum for a whole view, near the given map or its half turn.
  value(matrix, offset) {
    const [u, v] = apply(scaled(inverse(matrix), -1), offset);
    const half = matrix.flat().reduce((total, value, n) => total + value * this.matrix.flat()[n], 0) < 0;
    const values = half ? this.responses(scaled(matrix, -1)) : this.responses(matrix);
    return values.reduce((total, [re, im], t) => {
      const [kx, ky] = this.tones.frequencies[t];
      const angle = this.tones.phases[t] + TAU * (kx * (u + 0.5) + ky * (v + 0.5));
      return total + turned([re, half ? -im : im], -angle)[0];
    }, 0);
  }
}

function turned([re, im], angle) {
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  return [re * cos - im * sin, re * sin + im * cos];
}

function centredPlaces(size, length, unit) {
  return Float64Array.from({ length }, (_, n) => (n - (size - 1) / 2) / unit);
}

function blockMeans(places) {
  return Float64Array.from({ length: places.length / BLOCK }, (_, n) => (
    (places[n * BLOCK] + places[(n + 1) * BLOCK - 1]) / 2
  ));
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

// A picture times two waves, summed over blocks: {re, im}, row by row.
function demodulated({ width, values }, across, down, columns, rows) {
  const [re, im] = [new Float64Array(columns * rows), new Float64Array(columns * rows)];
  for (let y = 0; y < rows * BLOCK; y++) {
    const start = Math.floor(y / BLOCK) * columns;
    for (let column = 0, x = 0; column < columns; column++) {
      let [a, b] = [0, 0];
      for (const end = x + BLOCK; x < end; x++) {
        const value = values[y * width + x];
        a += value * across.re[x];
        b += value * across.im[x];
      }
      re[start + column] += a * down.re[y] - b * down.im[y];
      im[start + column] += a * down.im[y] + b * down.re[y];
    }
  }
  return { re, im };
}

function blockSum(blocks, across, down) {
  let [re, im] = [0, 0];
  for (let y = 0, n = 0; y < down.re.length; y++) {
    let [a, b] = [0, 0];
    for (let x = 0; x < across.re.length; x++, n++) {
      a += blocks.re[n] * across.re[x] - blocks.im[n] * across.im[x];
      b += blocks.re[n] * across.im[x] + blocks.im[n] * across.re[x];
    }
    re += a * down.re[y] - b * down.im[y];
    im += a * down.im[y] + b * down.re[y];
  }
  return [re, im];
}

function takePosition(total) {
  const place = argmax(total);
  const [row, column, value] = [Math.floor(place / FRAME), place % FRAME, total[place]];
  for (let y = Math.max(0, row - 3); y < Math.min(FRAME, row + 4); y++) {
    total.fill(-Infinity, y * FRAME + Math.max(0, column - 3), y * FRAME + Math.min(FRAME, column + 4));
  }
  return { row, column, value };
}

// --- views ---

// Received planes looked up at the marked frame, and where they are present.
export function undo(planes, { matrix, offset }, side = FRAME) {
  const { width, height } = planes[0];
  const unit = Math.sqrt(width * height);
  const toPixels = scaled(matrix, unit / side);
  const shrink = Math.sqrt(Math.abs(determinant(toPixels)));
  if (shrink > 1.5) { // the received picture is larger than what is asked: shrink it first, without aliasing
    const [rows, columns] = [height, width].map((length) => Math.max(8, round(length / shrink)));
    return undo(planes.map((plane) => resample(plane, columns, rows)), { matrix, offset }, side);
  }
  const middle = apply(toPixels, [side / 2, side / 2]);
  const [[a, b], [c, d]] = toPixels;
  const x = width / 2 + offset[0] * unit - middle[0];
  const y = height / 2 + offset[1] * unit - middle[1];
  return lookUp(planes, side, [a, b, x, c, d, y]);
}

const MOVES = [
  { turn: [[0, -TURN_STEP], [TURN_STEP, 0]], shift: [0, 0] },
  { turn: [[SCALE_STEP, 0], [0, SCALE_STEP]], shift: [0, 0] },
  { turn: [[SCALE_STEP, 0], [0, -SCALE_STEP]], shift: [0, 0] },
  { turn: [[0, SCALE_STEP], [SCALE_STEP, 0]], shift: [0, 0] },
  { turn: [[0, 0], [0, 0]], shift: [SHIFT_STEP, 0] },
  { turn: [[0, 0], [0, 0]], shift: [0, SHIFT_STEP] },
];

// Coordinate ascent of `value` over turn, scale, stretch, shear and position, with shrinking steps.
export function hillClimb(value, view, rounds, step = 1) {
  let best = { ...view, value: value(view.matrix, view.offset) };
  for (let n = 0; n < rounds; n++, step *= SHRINK) {
    for (const move of MOVES) best = better(value, best, move, step) ?? better(value, best, move, -step) ?? best;
  }
  return best;
}

function better(value, best, { turn: [[a, b], [c, d]], shift }, step) {
  const change = [[1 + step * a, step * b], [step * c, 1 + step * d]];
  const matrix = times(change, best.matrix);
  const [x, y] = apply(change, best.offset);
  const offset = [x + step * shift[0], y + step * shift[1]];
  const found = value(matrix, offset);
  return found > best.value ? { matrix, offset, value: found } : null;
}

// Views {matrix, offset} in which the tones of a received picture agree, most likely first.
export function* views(luma, tones) {
  const { plane, unit } = analysisPlane(luma);
  const white = whiten(plane);
  for (const candidate of candidates(logPolar(white), tones, unit).slice(0, CANDIDATES)) {
    if (candidate.z < MIN_PEAK) return;
    const coherence = new Coherence(white, unit, tones, linear(candidate));
    for (const place of coherence.positions()) {
      const { matrix, offset } = hillClimb((m, o) => coherence.value(m, o), place, 4);
      yield { matrix, offset };
    }
  }
}

// --- what a view means ---

export function isMirrored({ matrix }) {
  return determinant(matrix) < 0;
}

// Degrees counter-clockwise by which the marked picture was rotated.
export function rotationOf(view) {
  const [[a, b], [c, d]] = view.matrix;
  const sign = isMirrored(view) ? -1 : 1;
  return (-Math.atan2(sign * c - b, sign * a + d) * 180) / Math.PI;
}

// Area of the marked picture over the area of the received one.
export function areaOf({ matrix }) {
  return Math.abs(determinant(matrix));
}
