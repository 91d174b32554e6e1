// The reader of the pixel layer, as in diffmark/pixel/reader.py: a plain read, then the search for a view.
// Nothing leaves the page; nothing is awaited.

import { Layout, bitsToHex, evidence, margins, toFrame } from "./pixel-bands.js";
import { READER, SPECTRUM } from "./pixel-constants.js";
import { OperatorKey } from "./pixel-keys.js";
import { toPlane } from "./pixel-planes.js";
import { Tones, climb, searchable, undo, views } from "./pixel-search.js";

const { CLEAR_NATS, FOUND_NATS, PROMISING_NATS, REFINE_ROUNDS } = READER;
const PLANES = [SPECTRUM.LUMA, SPECTRUM.BLUE, SPECTRUM.RED]; // made one by one: a large picture's take much memory

export class PixelReader {
  // `key` is 64 hex digits, or null for the public key.
  constructor(key = null) {
    this.key = new OperatorKey(key);
    this.layout = new Layout(this.key);
    this.tones = new Tones(this.key);
  }

  // {scores, margins, bits, evidence, view} of RGBA pixels {width, height, data}; view is null for the picture as it
  // is. `progress(words)` is called before the steps that take long.
  read(pixels, { search = true, progress = () => {} } = {}) {
    const plain = { scores: this.layout.scores(PLANES.map((weights) => toFrame(toPlane(pixels, weights)))), view: null };
    return described(search ? this.#best(plain, pixels, progress) : plain);
  }

  // The reading with the most evidence; no secret is known here.
  #best(plain, pixels, progress) {
    let [best, most] = [plain, evidence(plain.scores)];
    if (most >= CLEAR_NATS) return plain;
    progress("Looking for a rotation, a crop or a border …");
    const planes = PLANES.map((weights) => searchable(toPlane(pixels, weights)));
    for (const view of views(toPlane(pixels, SPECTRUM.LUMA), this.tones)) {
      progress("Trying a view …");
      const found = this.#refined(planes, view);
      const value = evidence(found.scores);
      if (value > Math.max(most, FOUND_NATS)) [best, most] = [found, value];
      if (most >= CLEAR_NATS) break;
    }
    return best;
  }

  // The reading in a view, after hill climbing on the evidence of its luma bands.
  #refined(planes, view) {
    const value = (matrix, offset) => {
      const { planes: [luma], present } = undo(planes.slice(0, 1), { matrix, offset });
      return evidence(this.layout.lumaScores(luma, present));
    };
    const promising = value(view.matrix, view.offset) >= PROMISING_NATS;
    const { matrix, offset } = promising ? climb(value, view, REFINE_ROUNDS, 0.5) : view;
    const { planes: frame, present } = undo(planes, { matrix, offset });
    return { scores: this.layout.scores(frame, present), view: { matrix, offset } };
  }
}

function described({ scores, view }) {
  const found = margins(scores);
  return { scores, margins: found, bits: bitsToHex(found), evidence: evidence(scores), view };
}
