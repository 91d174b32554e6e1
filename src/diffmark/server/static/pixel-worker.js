// The worker of pixel-aside.js.

import { PixelReader } from "./pixel.js";

self.onmessage = ({ data: { key, pixels } }) => {
  try {
    const reader = new PixelReader(key); // made anew each time: a pasted key is not kept
    const started = performance.now();
    const found = reader.read(pixels, { progress: (words) => self.postMessage({ progress: words }) });
    self.postMessage({ found: { ...found, keyId: reader.key.id, milliseconds: performance.now() - started } });
  } catch (error) {
    self.postMessage({ error: error.message });
  }
};
