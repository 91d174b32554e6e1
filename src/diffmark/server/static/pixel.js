// The reader of the pixel layer, as in diffmark/pixel/reader.py: a plain read, then the search for a view.
// Nothing leaves the page; nothing is awaited.

import { Layout, bitsToHex, evidence, margins, toFrame } from "./pixel-bands.js";
import { READER } from "./pixel-constants.js";
import { OperatorKey } from "./pixel-keys.js";
import { isFlat, toPlanes } from "./pixel-planes.js";
import { Tones, hillClimb, undo, views } from "./pixel-search.js";

const { CHROMA_SIDE, CLEAR_NATS, FOUND_NATS, PROMISING_NATS, REFINE_ROUNDS } = READER;

export class PixelReader {
  // `key` is 64 hex digits, or null for the public key.
  constructor(key = null) {
    this.key = new OperatorKey(key);
    this.layout = new Layout(this.key);
    this.tones = new Tones(this.key);
  }

  // {scores, margins, bits, evidence, view, width, height, flat} of RGBA pixels {width, height, data}; view is null for
  // the picture as it is. `progress(words)` is called before the steps that take long.
  read(pixels, { search = true, progress = () => {} } = {}) {
    const planes = toPlanes(pixels);
    const plain = { scores: this.layout.scores(planes.map(toFrame)), view: null };
    const best = search ? this.#best(plain, planes, progress) : plain;
    return { ...described(best), width: pixels.width, height: pixels.height, flat: planes.every(isFlat) };
  }

  // The reading with the most evidence; no secret is known here.
  #best(plain, planes, progress) {
    let [best, most] = [plain, evidence(plain.scores)];
    if (most >= CLEAR_NATS) return plain;
    progress("Looking for a rotation, a crop or a border …");
    for (const view of views(planes[0], this.tones)) {
      progress("Trying a view …");
      const found = this.#refined(planes, view);
      const value = found ? evidence(found.scores) : -Infinity;
      if (value > Math.max(most, FOUND_NATS)) [best, most] = [found, value];
      if (most >= CLEAR_NATS) break;
    }
    return best;
  }

  // The reading in a view, after hill climbing on the evidence of its luma bands; null where no band has much.
  #refined(planes, view) {
    const value = (matrix, offset) => {
      const { planes: [luma], present } = undo(planes.slice(0, 1), { matrix, offset });
      return evidence(this.layout.lumaScores(luma, present));
    };
    let { matrix, offset } = view;
    if (value(matrix, offset) >= PROMISING_NATS) {
      ({ matrix, offset } = hillClimb(value, view, REFINE_ROUNDS, 0.5));
    } else {
      const { planes: chroma, present } = undo(planes.slice(1), view, CHROMA_SIDE);
      if (evidence(this.layout.chromaScores(chroma, present)) < PROMISING_NATS) return null;
    }
    const { planes: frame, present } = undo(planes, { matrix, offset });
    return { scores: this.layout.scores(frame, present), view: { matrix, offset } };
  }
}

function described({ scores, view }) {
  const found = margins(scores);
  return { scores, margins: found, bits: bitsToHex(found), evidence: evidence(scores), view };
}
