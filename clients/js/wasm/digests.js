/** The SHA-256 of the WebAssembly files; kernels/build.py writes them. */
export const DIGESTS = {
  "plain.wasm": "68a21f7afba6c05b81377c06a571bbcfafe3aee8fcfa88a39f6765ff10da96c8",
  "simd.wasm": "3d05ab4e35e4ac2023297ed23bd372628c4c140782579fad5b53b5ec5c7be0cc",
};
