// Pixels of an image file as the reader takes them: upright, sRGB, transparent parts laid on white.

import { CODEC } from "./pixel-constants.js";

const MEGA = 1e6;

// {width, height, data: RGBA} of a File or Blob; an error says why there are none.
export async function pixelsOf(file) {
  const bitmap = await decoded(file);
  const { width, height } = bitmap;
  if (width * height > CODEC.MAX_PIXELS) {
    bitmap.close();
    throw new Error(`It has ${width} × ${height} pixels; up to ${CODEC.MAX_PIXELS / MEGA} megapixels are read.`);
  }
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  if (!context) throw new Error("This browser cannot hold a picture of that size.");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  canvas.width = 0; // gives its memory back at once
  return { width, height, data };
}

async function decoded(file) {
  try {
    return await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch (error) {
    throw new Error("This file is damaged, not an image, or larger than this browser can open.");
  }
}
