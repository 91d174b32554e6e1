// A picture is read away from the page, so that it does not freeze. Nothing is sent anywhere.

import { pixelsOf } from "./pixel-picture.js";

// The reading of a file with a key (64 hex digits, or null for the public key) in a worker that `makeWorker` gives.
// `progress(words)` tells what is going on; `signal` ends it.
export async function readAside(file, key, makeWorker, progress, signal) {
  progress("Opening the picture …");
  const pixels = await pixelsOf(file);
  signal.throwIfAborted();
  progress("Reading …");
  const worker = makeWorker();
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason));
    worker.onmessage = ({ data }) => {
      if (data.progress) progress(data.progress);
      else if (data.error) reject(new Error(data.error));
      else resolve(data.found);
    };
    worker.onerror = (event) => reject(new Error(event.message || "This browser cannot run the reader."));
    worker.postMessage({ key, pixels }, [pixels.data.buffer]);
  }).finally(() => worker.terminate());
}
