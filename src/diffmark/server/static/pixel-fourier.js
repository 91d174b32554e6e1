// Fast Fourier and cosine transforms of planes, in double precision.

// A complex transform of `size`, a power of two, in place.
export class Fourier {
  constructor(size) {
    this.size = size;
    this.cos = Float64Array.from({ length: size / 2 }, (_, k) => Math.cos((2 * Math.PI * k) / size));
    this.sin = Float64Array.from({ length: size / 2 }, (_, k) => -Math.sin((2 * Math.PI * k) / size));
    this.order = new Uint32Array(size);
    const bits = Math.log2(size);
    for (let k = 1; k < size; k++) this.order[k] = (this.order[k >> 1] >> 1) | ((k & 1) << (bits - 1));
  }

  run(re, im) {
    this.#reorder(re, im);
    const { size, cos, sin } = this;
    for (let half = 1, stride = size / 2; half < size; half *= 2, stride /= 2) {
      for (let start = 0; start < size; start += 2 * half) {
        for (let k = start, t = 0; k < start + half; k++, t += stride) {
          const l = k + half;
          const x = re[l] * cos[t] - im[l] * sin[t];
          const y = re[l] * sin[t] + im[l] * cos[t];
          re[l] = re[k] - x;
          im[l] = im[k] - y;
          re[k] += x;
          im[k] += y;
        }
      }
    }
  }

  #reorder(re, im) {
    for (let k = 0; k < this.size; k++) {
      const l = this.order[k];
      if (l <= k) continue;
      [re[k], re[l]] = [re[l], re[k]];
      [im[k], im[l]] = [im[l], im[k]];
    }
  }
}

// Orthonormal DCT-II of square planes; only the `kept` lowest coefficients a side, an even number, are made.
export class Cosine {
  constructor(size, kept = size) {
    Object.assign(this, { size, kept, fourier: new Fourier(size) });
    this.re = new Float64Array(size);
    this.im = new Float64Array(size);
    this.rows = new Float64Array(size * kept); // between the two passes
    const norm = (k) => Math.sqrt((k ? 2 : 1) / size);
    this.cos = Float64Array.from({ length: size }, (_, k) => norm(k) * Math.cos((Math.PI * k) / (2 * size)));
    this.sin = Float64Array.from({ length: size }, (_, k) => norm(k) * Math.sin((Math.PI * k) / (2 * size)));
  }

  // (size, size) -> (kept, kept), both row by row.
  run(plane) {
    const { size, kept, rows } = this;
    for (let y = 0; y < size; y += 2) this.#pair(plane, y * size, size, 1, rows, y * kept, kept, 1);
    const found = new Float64Array(kept * kept);
    for (let x = 0; x < kept; x += 2) this.#pair(rows, x, 1, kept, found, x, 1, kept);
    return found;
  }

  // Two lines, `apart` from each other, as real and imaginary part of one transform.
  #pair(source, start, apart, step, target, place, across, stride) {
    const { size, kept, re, im, cos, sin } = this;
    for (let k = 0, l = size - 1, n = start; k <= l; k++, l--) {
      re[k] = source[n];
      im[k] = source[n + apart];
      n += step;
      re[l] = source[n];
      im[l] = source[n + apart];
      n += step;
    }
    this.fourier.run(re, im);
    for (let k = 0; k < kept; k++) {
      const l = (size - k) % size;
      const c = cos[k] / 2;
      const s = sin[k] / 2;
      target[place + k * stride] = c * (re[k] + re[l]) + s * (im[k] - im[l]);
      target[place + across + k * stride] = c * (im[k] + im[l]) - s * (re[k] - re[l]);
    }
  }
}

// |F|^2 of a plane in the corner of a square of zeros: rows of all frequencies, columns 0 ... size / 2.
export function powerSpectrum({ width, height, values }, size) {
  const fourier = new Fourier(size);
  const columns = size / 2 + 1;
  const re = new Float64Array(size * columns);
  const im = new Float64Array(size * columns);
  const [a, b] = [new Float64Array(size), new Float64Array(size)];
  for (let y = 0; y < height; y += 2) {
    a.fill(0).set(values.subarray(y * width, (y + 1) * width));
    b.fill(0);
    if (y + 1 < height) b.set(values.subarray((y + 1) * width, (y + 2) * width));
    fourier.run(a, b);
    for (let x = 0; x < columns; x++) { // the spectra of two real rows apart
      const z = (size - x) % size;
      const [here, below] = [y * columns + x, (y + 1) * columns + x];
      re[here] = (a[x] + a[z]) / 2;
      im[here] = (b[x] - b[z]) / 2;
      re[below] = (b[x] + b[z]) / 2;
      im[below] = (a[z] - a[x]) / 2;
    }
  }
  const power = new Float32Array(size * columns);
  for (let x = 0; x < columns; x++) {
    for (let y = 0; y < size; y++) [a[y], b[y]] = [re[y * columns + x], im[y * columns + x]];
    fourier.run(a, b);
    for (let y = 0; y < size; y++) power[y * columns + x] = a[y] * a[y] + b[y] * b[y];
  }
  return { width: columns, height: size, values: power };
}
