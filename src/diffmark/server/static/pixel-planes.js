// Planes {width, height, values: Float32Array}: colours, resampling, local means, whitening, affine look-up.
// Each step rounds to single precision where numpy, scipy and Pillow do.

import { SPECTRUM } from "./pixel-constants.js";

const { WINDOW, NOISE_FLOOR, CLIP, MAX_AREA, TO_PLANES } = SPECTRUM;

export function newPlane(width, height) {
  return { width, height, values: new Float32Array(width * height) };
}

// Half to even, as Python rounds.
export function round(x) {
  const low = Math.floor(x);
  if (x - low !== 0.5) return Math.round(x);
  return low % 2 === 0 ? low : low + 1;
}

// Luma, blue and red chroma of RGBA pixels, levels of 0 ... 255; large pictures at MAX_AREA pixels.
export function toPlanes(pixels) {
  const { width, height } = pixels;
  const scale = Math.min(1, Math.sqrt(MAX_AREA / (width * height)));
  const [columns, rows] = [width, height].map((side) => Math.max(1, round(side * scale)));
  const colours = [0, 1, 2].map((place) => resample(colour(pixels, place), columns, rows).values);
  return TO_PLANES.map((weights) => mixed(colours, weights, columns, rows));
}

// Red, green or blue; transparent pixels are laid on white.
function colour({ width, height, data }, place) {
  const plane = newPlane(width, height);
  for (let n = 0, p = 0; n < plane.values.length; n++, p += 4) {
    const alpha = data[p + 3];
    plane.values[n] = alpha === 255 ? data[p + place]
      : Math.round((data[p + place] * alpha + 255 * (255 - alpha)) / 255);
  }
  return plane;
}

function mixed([r, g, b], [red, green, blue], width, height) {
  const plane = newPlane(width, height);
  for (let n = 0; n < plane.values.length; n++) plane.values[n] = red * r[n] + green * g[n] + blue * b[n];
  return plane;
}

// Whether a plane is one level everywhere.
export function isFlat({ values }) {
  return values.every((value) => Math.abs(value - values[0]) < 0.5);
}

// --- Lanczos, as Pillow resizes images of mode "F": first rows, then columns ---

export function resample(plane, width, height) {
  let found = plane;
  if (width !== found.width) found = resampleRows(found, width);
  if (height !== found.height) found = resampleColumns(found, height);
  return found;
}

function lanczos(x) {
  if (x < -3 || x >= 3) return 0;
  if (x === 0) return 1;
  const angle = Math.PI * x;
  return (Math.sin(angle) / angle) * (Math.sin(angle / 3) / (angle / 3));
}

// Weights of the inputs of every output: {first, weights}. When shrinking, the kernel is stretched.
function kernels(before, after) {
  const scale = before / after;
  const stretch = Math.max(scale, 1);
  const support = 3 * stretch;
  return Array.from({ length: after }, (_, n) => {
    const centre = (n + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(before, Math.trunc(centre + support + 0.5));
    const weights = new Float64Array(last - first).map((_, k) => lanczos((first + k - centre + 0.5) / stretch));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return { first, weights: sum ? weights.map((weight) => weight / sum) : weights };
  });
}

function resampleRows({ width, height, values }, wanted) {
  const found = newPlane(wanted, height);
  const wide = kernels(width, wanted);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < wanted; x++) {
      const { first, weights } = wide[x];
      const start = y * width + first;
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += values[start + k] * weights[k];
      found.values[y * wanted + x] = sum;
    }
  }
  return found;
}

function resampleColumns({ width, height, values }, wanted) {
  const found = newPlane(width, wanted);
  const sums = new Float64Array(width);
  kernels(height, wanted).forEach(({ first, weights }, y) => {
    sums.fill(0);
    for (let k = 0; k < weights.length; k++) {
      const weight = weights[k];
      const start = (first + k) * width;
      for (let x = 0; x < width; x++) sums[x] += values[start + x] * weight;
    }
    found.values.set(sums, y * width);
  });
  return found;
}

// --- local means and whitening ---

// Places of a window's ends beyond an edge: mirrored (the edge itself twice), or from the other side.
const EDGES = {
  reflect: (n, size) => {
    const k = ((n % (2 * size)) + 2 * size) % (2 * size);
    return k < size ? k : 2 * size - 1 - k;
  },
  wrap: (n, size) => ((n % size) + size) % size,
};

// Mean over a square window of odd `size`: columns first, as scipy.
export function box(plane, size = WINDOW, edge = "reflect") {
  const { width, height } = plane;
  const down = newPlane(width, height);
  const rows = places(height, size, edge);
  const sums = new Float64Array(width);
  for (let k = 0; k < size; k++) addLine(sums, plane.values, rows[k] * width, 1);
  for (let y = 0; ; y++) {
    for (let x = 0, n = y * width; x < width; x++, n++) down.values[n] = sums[x] / size;
    if (y === height - 1) break;
    addLine(sums, plane.values, rows[y + size] * width, 1);
    addLine(sums, plane.values, rows[y] * width, -1);
  }
  const columns = places(width, size, edge);
  const found = newPlane(width, height);
  for (let y = 0; y < height; y++) meanOfRow(down.values, found.values, y * width, width, size, columns);
  return found;
}

function places(length, size, edge) {
  return Int32Array.from({ length: length + size }, (_, n) => EDGES[edge](n - (size >> 1), length));
}

function addLine(sums, values, start, sign) {
  for (let x = 0; x < sums.length; x++) sums[x] += sign * values[start + x];
}

function meanOfRow(values, found, start, width, size, columns) {
  let sum = 0;
  for (let k = 0; k < size; k++) sum += values[start + columns[k]];
  for (let x = 0; x < width; x++) {
    found[start + x] = sum / size;
    sum += values[start + columns[x + size]] - values[start + columns[x]];
  }
}

// (Y - local mean) / local deviation, clipped; zero where the picture is not `present` (a plane of 0 and 1).
export function whiten(luma, present = null) {
  const { width, height, values } = luma;
  const weight = present && box(present).values;
  if (weight) for (let n = 0; n < weight.length; n++) weight[n] = Math.max(weight[n], 1e-3);
  const mean = box(luma).values; // absent places are 0 already
  const detail = newPlane(width, height);
  const square = newPlane(width, height);
  for (let n = 0; n < values.length; n++) {
    const local = present ? Math.fround(mean[n] / weight[n]) : mean[n];
    const d = present ? Math.fround(values[n] - local) * present.values[n] : Math.fround(values[n] - local);
    detail.values[n] = d;
    square.values[n] = d * d;
  }
  const variance = box(square).values;
  for (let n = 0; n < values.length; n++) {
    const local = Math.max(present ? variance[n] / weight[n] : variance[n], 0);
    const white = detail.values[n] / Math.sqrt(local + NOISE_FLOOR ** 2);
    detail.values[n] = Math.min(Math.max(white, -CLIP), CLIP);
  }
  return detail;
}

// --- affine look-up, as Pillow's transform(AFFINE, BICUBIC) of mode "F" ---

// `size` squared places (x, y) looked up at (a x + b y + c, d x + e y + f): planes, and where they are present.
export function lookUp(planes, size, [a, b, c, d, e, f]) {
  const found = planes.map(() => newPlane(size, size));
  const present = newPlane(size, size);
  const { width, height } = planes[0];
  for (let row = 0, n = 0; row < size; row++) {
    for (let column = 0; column < size; column++, n++) {
      const x = a * (column + 0.5) + b * (row + 0.5) + c;
      const y = d * (column + 0.5) + e * (row + 0.5) + f;
      if (!(x >= 0 && x < width && y >= 0 && y < height)) continue;
      present.values[n] = 1;
      for (let k = 0; k < planes.length; k++) found[k].values[n] = bicubic(planes[k], x - 0.5, y - 0.5);
    }
  }
  return { planes: found, present };
}

function bicubic({ width, height, values }, x, y) {
  const left = Math.floor(x);
  const top = Math.floor(y);
  const dx = x - left;
  const x0 = clamp(left - 1, width);
  const x1 = clamp(left, width);
  const x2 = clamp(left + 1, width);
  const x3 = clamp(left + 2, width);
  const a = clamp(top - 1, height) * width;
  const b = clamp(top, height) * width;
  const c = clamp(top + 1, height) * width;
  const d = clamp(top + 2, height) * width;
  return cubic(
    cubic(values[a + x0], values[a + x1], values[a + x2], values[a + x3], dx),
    cubic(values[b + x0], values[b + x1], values[b + x2], values[b + x3], dx),
    cubic(values[c + x0], values[c + x1], values[c + x2], values[c + x3], dx),
    cubic(values[d + x0], values[d + x1], values[d + x2], values[d + x3], dx),
    y - top,
  );
}

function clamp(n, size) {
  return n < 0 ? 0 : n >= size ? size - 1 : n;
}

function cubic(v0, v1, v2, v3, d) {
  return v1 + d * (v2 - v0 + d * (2 * (v0 - v1) + v2 - v3 + d * (v1 - v0 + v3 - v2)));
}
