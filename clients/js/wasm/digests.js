/** The SHA-256 of the WebAssembly files; kernels/build.py writes them. */
export const DIGESTS = {
  "plain.wasm": "0ac45a3e321a1d2d61a2822df25a1cb67b2f49f1f63449cfe2bf50c225925bcb",
  "simd.wasm": "7beab711229366d4fc5d8c9f8659a54e4bc1f840d99051cbcdc8a3ef8ea7c767",
};
