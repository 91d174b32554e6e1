// What a reading of the pixel layer means, in words. Pure functions.

import { CALIBRATION, CODEC, MARKED_RATE } from "./pixel-constants.js";
import { areaOf, isMirrored, rotationOf } from "./pixel-search.js";
import { probability } from "./words.js";

const UNDECIDED_RATE = 1e-2; // more usual evidence than this is no sign of a mark
const NO_PROOF = "This does not prove that the picture was never marked: a mark can be weakened or removed, or may have "
  + "been written with another key.";
const NOT_WHO = "The mark tells that the secret below was written into the picture, not who did it or who changed it "
  + "afterwards.";
const FLAT = "The picture is one flat colour. Such a picture cannot carry a mark.";
const LARGER = "A larger or less changed copy of the picture may say more.";

// Bounds of the share of unmarked pictures with at least this evidence, by a table
// {negatives, tail: [[share, nats], ...]}: `share` of the unmarked pictures had more than `nats`.
export function falseRate(evidence, { tail }) {
  const shares = (reached) => tail.filter(([, nats]) => (evidence > nats) === reached).map(([share]) => share);
  return { atMost: Math.min(1, ...shares(true)), atLeast: Math.max(0, ...shares(false)) };
}

// {kind, headline, sentences} of a reading.
export function blindVerdict(found, keyWords, calibration = CALIBRATION) {
  const { atMost, atLeast } = falseRate(found.evidence, calibration);
  const pictures = `the ${calibration.negatives.toLocaleString("en")} pictures without a mark that this reader was tried on`;
  const rare = `Of ${pictures}, at most ${probability(atMost)} had as much evidence.`;
  if (atMost <= MARKED_RATE) {
    return { kind: "named", headline: `This picture carries a mark of ${keyWords}.`, sentences: [rare, NOT_WHO] };
  }
  if (atMost <= UNDECIDED_RATE) {
    return { kind: "stranger", headline: "Undecided: there may be a weak mark.", sentences: [rare, LARGER] };
  }
  const usual = `Such evidence is usual without a mark: ${atLeast ? `at least ${probability(atLeast)}` : "many"} of ${pictures} `
    + "had as much.";
  const sentences = found.flat ? [FLAT] : [usual, ...tooSmall(found), NO_PROOF];
  return { kind: "none", headline: `No mark of ${keyWords} was found.`, sentences };
}

function tooSmall({ width, height }) {
  if (Math.min(width, height) >= CODEC.MIN_SIDE) return [];
  return [`It is only ${width} × ${height} pixels; marks are written into pictures of at least ${CODEC.MIN_SIDE} a side.`];
}

// "the public key", "the key 0a1b2c3d"; `key` is null for the public one.
export function keyInWords(key, { keyId }) {
  return key === null ? "the public key" : `the key ${keyId}`;
}

// What is shown of a reading besides the verdict: [[name, value, class], ...].
export function factsOf(found, { kind }) {
  return [
    [kind === "named" ? "Secret" : "Bits as read", found.bits, "secret"],
    ["Key id", found.keyId, "code"],
    ["Evidence", `${found.evidence.toLocaleString("en", { maximumFractionDigits: 1 })} nats`, ""],
    ...(kind === "none" ? [] : [["View", viewInWords(found.view), ""]]),
    ["Size", `${found.width} × ${found.height} pixels`, ""],
    ["Time", `${Math.round(found.milliseconds).toLocaleString("en")} ms`, ""],
  ];
}

// "rotated by 20 degrees counter-clockwise, ..."
export function viewInWords(view) {
  if (!view) return "as it came: no rotation, mirror or crop had to be undone";
  const parts = isMirrored(view) ? ["mirrored"] : [];
  const degrees = Number(rotationOf(view).toFixed(1));
  if (degrees) parts.push(`rotated by ${Math.abs(degrees)} degrees ${degrees > 0 ? "counter-" : ""}clockwise`);
  const area = areaOf(view);
  if (area > 1.01) parts.push(`cropped: about ${percent(1 / area)} of the marked picture is left`);
  else if (area < 0.99) parts.push(`the marked picture covers ${percent(area)} of this one`);
  return parts.join(", ") || "moved a little";
}

function percent(share) {
  return `${Math.round(100 * share)}%`;
}
