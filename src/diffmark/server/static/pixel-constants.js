// Made by `python -m diffmark.server.verify_page` from the Python modules of the same names.

export const KEYS = {
  KEY_BYTES: 32,
  SALT: "diffmark pixel layer 1",
  PUBLIC_PHRASE: "diffmark public key for trying out",
};

export const SPECTRUM = {
  FRAME: 512,
  WINDOW: 11,
  NOISE_FLOOR: 1.0,
  CLIP: 2.5,
  OUTLIER: 3.0,
  AXIS_GUARD: 4,
  GRID: 128,
  GRID_GUARD: 2,
  MAX_AREA: 1048576,
  TO_PLANES: [[0.29899999499320984, 0.5870000123977661, 0.11400000005960464], [-0.16873599588871002, -0.3312639892101288, 0.5], [0.5, -0.41868799924850464, -0.08131200075149536]],
};

export const LAYOUT = {
  MIN_GAIN: 0.05,
  BANDS: [{"name": "luma-1", "plane": 0, "low": 28, "high": 44}, {"name": "luma-2", "plane": 0, "low": 44, "high": 64}, {"name": "luma-3", "plane": 0, "low": 64, "high": 88}, {"name": "luma-4", "plane": 0, "low": 88, "high": 112}, {"name": "luma-5", "plane": 0, "low": 112, "high": 136}, {"name": "blue-1", "plane": 1, "low": 20, "high": 32}, {"name": "red-1", "plane": 2, "low": 20, "high": 32}],
  LENGTH: 64,
};

export const TONES = {
  COUNT: 24,
  LOW: 56.0,
  HIGH: 112.0,
  APART: 3.0,
  STEPS: 64,
};

export const SEARCH = {
  SIZE: 1024,
  ANGLES: 1080,
  STEP: 0.004,
  MIN_SCALE: 0.45,
  MAX_SCALE: 1.7,
  LOCAL: 25,
  PEAK: 8.0,
  ASPECTS: [1.0, 1.3333333333333333, 0.75, 1.5, 0.6666666666666666, 1.7777777777777777, 0.5625],
  CANDIDATES: 3,
  MIN_PEAK: 6.8,
  POSITIONS: 3,
  TURN_STEP: 0.0020943951023931952,
  SCALE_STEP: 0.0025,
  SHIFT_STEP: 0.001171875,
  BLOCK: 16,
  SHRINK: 0.55,
};

export const READER = {
  CHROMA_SIDE: 128,
  CLEAR_NATS: 60.0,
  FOUND_NATS: 20.0,
  PROMISING_NATS: 6.0,
  REFINE_ROUNDS: 3,
};

export const CODEC = {
  MIN_SIDE: 64,
  MAX_PIXELS: 100000000,
};

export const MARKED_RATE = 0.001; // share of unmarked pictures called marked

export const CALIBRATION = {"negatives": 20000, "tail": [[0.5, -0.1717], [0.2, 0.9797], [0.1, 1.8151], [0.05, 2.5763], [0.02, 3.6547], [0.01, 4.4738], [0.005, 5.2912], [0.002, 6.3312], [0.001, 7.4004], [0.0005, 8.2496], [0.0002, 8.7768], [0.0001, 9.5484], [5e-05, 10.5982]]};
