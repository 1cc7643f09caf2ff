/** heliograph-client: the client of Heliograph in a browser or in Node. docs/browser.md says how to use it. */

export { Client, classOf, MOST_MEMORY } from "./client.js";
export { WorkerClient } from "./worker-client.js";
export { PublicPart } from "./public.js";
export { Message } from "./messages.js";
export { RemoteServer } from "./remote.js";
export {
  CancelledError, HeliographError, InternalError, ProgramError, RangeError, SecurityError, TooLittleMemoryError, WireError,
} from "./errors.js";
