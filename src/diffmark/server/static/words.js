// What an answer means, in words. Pure functions of the service's answers.

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const PARTIAL = 0.8; // share of the picture below which the evidence is called partial
const MISSING = 0.15; // share of the telling places without the mark above which it is called partial
const ACCIDENT = "On other kinds of pictures, such as photographs, that happens by accident more often.";
const number = (value) => value.toLocaleString("en");

// "3 in 10¹¹", "2 in 1,000": a probability for people.
export function probability(p) {
  if (p >= 0.995) return "almost certain";
  if (p >= 0.095) return `${Math.round(p * 100)} in 100`;
  if (p < 1e-300) return "less than 1 in 10³⁰⁰";
  let power = Math.ceil(-Math.log10(p) - 1e-9);
  let count = Math.round(p * 10 ** power);
  if (count === 10) [count, power] = [1, power - 1];
  if (power <= 6) return `${count} in ${number(10 ** power)}`;
  return `${count} in 10${[...String(power)].map((digit) => SUPERSCRIPTS[digit]).join("")}`;
}

export function bytes(count) {
  return count < 1e6 ? `${Math.ceil(count / 1e3)} kB` : `${(count / 1e6).toFixed(1).replace(/\.0$/, "")} MB`;
}

// {kind, headline, sentences} of one examination.
export function verdict(result) {
  const { answer, found } = result;
  if (answer?.principal) return named(result);
  if (!answer) return anonymous(found);
  const best = nearest(answer);
  if (found.verdict === "marked") {
    return {
      kind: "stranger",
      headline: "No key matches.",
      sentences: [
        best,
        "The decoder is surer of its bits than is usual without a mark: the mark may be damaged, or its key may not be "
          + `in this registry. ${ACCIDENT}`,
      ],
    };
  }
  return {
    kind: "none",
    headline: found.verdict === "undecided" ? "No key matches." : "No mark found.",
    sentences: [
      best,
      "This does not prove that the image was not made by one of your models: a mark can be weakened or removed.",
    ],
  };
}

// How near the nearest key is when nobody is named.
function nearest({ keys, family_wise: p }) {
  if (p > 0.05) return `The nearest of ${all(keys)} is no closer than chance would bring it.`;
  return `The nearest of ${all(keys)} is closer than usual: chance brings one so close in ${probability(p)} cases. `
    + "That is not enough to name anyone.";
}

const all = (keys) => `${number(keys)} ${keys === 1 ? "key" : "keys"}`;

function named({ answer, found }) {
  const [best] = answer.candidates;
  const agree = found.secret.length * 4 - best.distance;
  const sentences = [
    `The chance of a false match among ${all(answer.keys)} is ${probability(answer.family_wise)}.`,
    `${agree} of ${found.secret.length * 4} bits agree with the key.`,
  ];
  if (best.status !== "live") sentences.push(`The key is ${best.status} by now; pictures outlive their key.`);
  const others = new Set(
    answer.candidates.filter((one) => one.family_wise <= answer.rate).map((one) => one.principal),
  );
  if (others.size > 1) {
    sentences.push(`${others.size} accounts fit: the picture may be mixed from several. See the candidates.`);
  }
  return { kind: "named", headline: `This image carries the mark issued to ${answer.principal}.`, sentences };
}

// For a token that may not ask for names.
function anonymous(found) {
  const ask = "Whose it is, an auditor's token can ask.";
  if (found.verdict === "marked") {
    const sure = `Of the unmarked images that the codec was calibrated on, ${probability(found.p_value)} are read as surely.`;
    return { kind: "stranger", headline: "This image seems to carry a mark.", sentences: [sure, ACCIDENT, ask] };
  }
  return {
    kind: "none",
    headline: found.verdict === "undecided" ? "Undecided." : "No mark found.",
    sentences: [found.explanation[0].toUpperCase() + found.explanation.slice(1) + "."],
  };
}

const SMALL = 256; // pixels a side below which the pixel layer holds less

// What to be careful about with this picture, most telling first.
export function cautions(result, imageSize) {
  const { found, width, height, evidence } = result;
  const { kind } = verdict(result);
  const [rows, columns] = imageSize ?? [0, 0]; // null: pictures of any size and shape are read
  const list = [...found.notes.map((note) => note[0].toUpperCase() + note.slice(1) + ".")];
  if (evidence && partial(evidence)) {
    list.push("The evidence lies in a part of the picture only: it may be pasted together, retouched or cropped. "
      + "Look at the map.");
  }
  if (width < (columns || SMALL) || height < (rows || SMALL)) {
    list.push(`It is only ${width} × ${height} pixels, `
      + (imageSize ? `and marks are read at ${columns} × ${rows}. ` : "and small pictures hold little of a mark. ")
      + "A larger copy may say more.");
  }
  if (kind === "named") {
    list.push("The mark tells whose key was written into the picture, not who changed or spread it afterwards.");
    return list;
  }
  if (imageSize && Math.abs(Math.log((width / height) * (rows / columns))) > 0.02) {
    list.push(`Its shape, ${width} × ${height}, is not the one that marks are made in. If it was cropped, the mark `
      + "no longer lies where it is looked for.");
  }
  list.push((imageSize ? "Rotation, cropping and strong blur weaken" : "Strong blur and regeneration by a model weaken")
    + " or remove the mark. Ask for the original file before you rely on this answer.");
  return list;
}

// Whether a part of the picture lacks the mark: known where the reader knows what an untouched picture shows.
function partial({ scores, missing }) {
  return missing === null || missing === undefined ? share(scores) < PARTIAL : missing > MISSING;
}

// Share of the places that fit the key clearly better than chance.
function share(scores) {
  const places = scores.flat();
  return places.filter((score) => score > 1.5).length / places.length;
}

// The bits of a hex key, most significant first.
export function bitsOf(hex) {
  return [...hex].flatMap((digit) => [...parseInt(digit, 16).toString(2).padStart(4, "0")].map(Number));
}
